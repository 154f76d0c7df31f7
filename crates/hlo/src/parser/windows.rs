//! Windows, paddings, dimension labels: the attributes that look like `3x3` and `b01f_01io->b01f`.

use memplan_ir::{
    ConvolutionDimensions, Dimensions, PaddingDimension, TensorSparsity, Window, WindowDimension,
};
use smallvec::SmallVec;

use super::cursor::{Cursor, Parsed};
use crate::{error::ParseErrorKind, lexer::Token};

impl<'s> Cursor<'s> {
    /// `{size=3x3 stride=2x2 pad=0_1x0_1}`
    pub(crate) fn window(&mut self) -> Parsed<Window> {
        let start = self.span.start;
        self.expect(Token::LeftBrace, "`{`")?;
        let mut fields: [Option<Dimensions>; 6] = Default::default();
        while self.token == Token::Attribute {
            let span = self.span.clone();
            let name = self.text();
            let field = match name {
                "size=" => 0,
                "stride=" => 1,
                "lhs_dilate=" => 2,
                "rhs_dilate=" => 3,
                "rhs_reversal=" => 4,
                "pad=" => 5,
                _ => return Err(self.error(ParseErrorKind::Window { reason: "unknown attribute" })),
            };
            self.advance();
            let values = match field {
                5 => self.padding()?.iter().flat_map(|p| [p.low, p.high]).collect(),
                _ => self.extents()?,
            };
            if fields[field].replace(values).is_some() {
                return Err(self.error_at(span, ParseErrorKind::Window { reason: "repeated attribute" }));
            }
            self.eat(Token::Comma);
        }
        self.expect(Token::RightBrace, "an attribute of the window or `}`")?;
        let [size, stride, lhs_dilate, rhs_dilate, rhs_reversal, pad] = &fields;
        let rank = size.as_ref().map_or(0, |size| size.len());
        let lists = [stride, lhs_dilate, rhs_dilate, rhs_reversal];
        let pads = pad.as_ref().is_none_or(|pad| pad.len() == 2 * rank);
        if lists.iter().any(|list| list.as_ref().is_some_and(|list| list.len() != rank)) || !pads {
            let reason = "every list needs one entry per entry of `size`";
            return Err(self.error_at(start..self.previous_end, ParseErrorKind::Window { reason }));
        }
        let get =
            |list: &Option<Dimensions>, d: usize, default| list.as_ref().map_or(default, |list| list[d]);
        let dimensions = (0..rank).map(|d| WindowDimension {
            size: get(size, d, 1),
            stride: get(stride, d, 1),
            padding_low: get(pad, 2 * d, 0),
            padding_high: get(pad, 2 * d + 1, 0),
            window_dilation: get(rhs_dilate, d, 1),
            base_dilation: get(lhs_dilate, d, 1),
            window_reversal: get(rhs_reversal, d, 0) == 1,
        });
        Ok(Window { dimensions: dimensions.collect() })
    }

    /// `3`, `3x3`
    fn extents(&mut self) -> Parsed<Dimensions> {
        if !matches!(self.token, Token::Integer | Token::Extents) {
            return Err(self.unexpected("extents like `3x3`"));
        }
        let text = self.text();
        let extents = text.split('x').map(|n| self.part(n)).collect::<Parsed<_>>()?;
        self.advance();
        Ok(extents)
    }

    /// `0_1`, `0_1x0_1`, `0_1_2x0_1_0`
    pub(crate) fn padding(&mut self) -> Parsed<SmallVec<[PaddingDimension; 2]>> {
        if self.token != Token::Padding {
            return Err(self.unexpected("a padding like `0_1x0_1`"));
        }
        let text = self.text();
        let padding = text.split('x').map(|dimension| {
            let mut numbers = dimension.split('_').map(|n| self.part(n));
            let mut next = || numbers.next().unwrap_or(Ok(0));
            Ok(PaddingDimension { low: next()?, high: next()?, interior: next()? })
        });
        let padding = padding.collect::<Parsed<_>>()?;
        self.advance();
        Ok(padding)
    }

    fn part(&self, text: &str) -> Parsed<i64> {
        text.parse().map_err(|_| {
            self.error(ParseErrorKind::NumberOutOfRange { text: text.to_owned(), what: "an integer" })
        })
    }

    /// `b01f_01io->b01f`
    pub(crate) fn dimension_labels(&mut self) -> Parsed<ConvolutionDimensions> {
        if self.token != Token::DimensionLabels {
            return Err(self.unexpected("dimension labels like `b01f_01io->b01f`"));
        }
        let text = self.text();
        let invalid = |reason| self.error(ParseErrorKind::DimensionLabels { reason });
        let (operands, output) = text.split_once("->").expect("the lexer saw an arrow");
        let (input, kernel) = operands.split_once('_').expect("the lexer saw an underscore");
        let (input, kernel, output) = (
            labels(input, [b'b', b'f']).map_err(invalid)?,
            labels(kernel, [b'i', b'o']).map_err(invalid)?,
            labels(output, [b'b', b'f']).map_err(invalid)?,
        );
        if input.1.len() != kernel.1.len() || input.1.len() != output.1.len() {
            return Err(invalid("input, kernel and output differ in spatial dimensions"));
        }
        self.advance();
        Ok(ConvolutionDimensions {
            input_batch: input.0[0],
            input_feature: input.0[1],
            input_spatial: input.1,
            kernel_input_feature: kernel.0[0],
            kernel_output_feature: kernel.0[1],
            kernel_spatial: kernel.1,
            output_batch: output.0[0],
            output_feature: output.0[1],
            output_spatial: output.1,
        })
    }

    /// `{lhs={sparsity=2x4 dimension=1 stride=1} rhs={...}}`
    pub(crate) fn sparsity(&mut self) -> Parsed<[Option<TensorSparsity>; 2]> {
        let mut sides = [None; 2];
        self.expect(Token::LeftBrace, "`{`")?;
        while !self.eat(Token::RightBrace) {
            let side = if self.eat_attribute("lhs") {
                0
            } else {
                self.expect_attribute("rhs")?;
                1
            };
            sides[side] = Some(self.tensor_sparsity()?);
            self.eat(Token::Comma);
        }
        Ok(sides)
    }

    fn tensor_sparsity(&mut self) -> Parsed<TensorSparsity> {
        let mut sparsity = TensorSparsity::default();
        self.expect(Token::LeftBrace, "`{`")?;
        while !self.eat(Token::RightBrace) {
            if self.eat_attribute("sparsity") {
                let start = self.span.start;
                let extents = self.extents()?;
                let &[num_non_zero, block_size] = extents.as_slice() else {
                    let kind = ParseErrorKind::Count { expected: 2, found: extents.len() };
                    return Err(self.error_at(start..self.previous_end, kind));
                };
                (sparsity.num_non_zero, sparsity.block_size) = (num_non_zero, block_size);
            } else if self.eat_attribute("dimension") {
                sparsity.dimension = self.integer()?;
            } else {
                self.expect_attribute("stride")?;
                sparsity.stride = self.integer()?;
            }
            self.eat(Token::Comma);
        }
        Ok(sparsity)
    }
}

/// The positions of the two letters in `text`, and those of the spatial dimensions 0, 1, ... A `?` is any other
/// dimension.
fn labels(text: &str, letters: [u8; 2]) -> Result<([i64; 2], Dimensions), &'static str> {
    let n_spatial = text.bytes().filter(u8::is_ascii_digit).count();
    let mut found = [-1; 2];
    let mut spatial = Dimensions::from_elem(-1, n_spatial);
    for (position, byte) in text.bytes().enumerate() {
        let place = match byte {
            b'?' => continue,
            b'0'..=b'9' => {
                spatial.get_mut(usize::from(byte - b'0')).ok_or("a spatial dimension is missing")?
            }
            _ => match letters.iter().position(|&letter| letter == byte) {
                Some(which) => &mut found[which],
                None => return Err("a letter belongs to another operand"),
            },
        };
        if std::mem::replace(place, position as i64) != -1 {
            return Err("a label is repeated");
        }
    }
    if found.contains(&-1) {
        return Err("the batch or feature dimension is missing");
    }
    Ok((found, spatial))
}
