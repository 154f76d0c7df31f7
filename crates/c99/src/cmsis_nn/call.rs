//! The call of a kernel, as the statements of a function.

use std::fmt::Write;

use memplan_ir::WindowDimension;

use super::Rounding;
use super::pattern::Source;

/// What a file with calls begins with.
pub(crate) const PRELUDE: &str = "\
/* What a kernel of CMSIS-NN returned that could not run. */
static int32_t cmsis_nn_status = ARM_CMSIS_NN_SUCCESS;
static void check_status(arm_cmsis_nn_status status)
{
    if (status != ARM_CMSIS_NN_SUCCESS) {
        cmsis_nn_status = status;
    }
}
";

/// Extents as the library orders them: `n`, `h`, `w`, `c`.
pub(super) type Extents = [i64; 4];

/// A window over height and width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) size: [i64; 2],
    pub(super) stride: [i64; 2],
    /// Before the first element. What is after the last one follows from the extents of the result.
    pub(super) padding: [i64; 2],
    pub(super) dilation: [i64; 2],
}

impl Window {
    /// One that is everywhere.
    pub(super) fn of_size(size: [i64; 2]) -> Window {
        Window { size, stride: [1, 1], padding: [0, 0], dilation: [1, 1] }
    }

    /// Of the two of these dimensions that are height and width, if the library has windows like that.
    pub(super) fn of(dimensions: &[WindowDimension], [h, w]: [usize; 2]) -> Option<Window> {
        let [h, w] = [dimensions.get(h)?, dimensions.get(w)?];
        // It has numbers of 16 bits for all of them. A window that is beyond the border has no numbers.
        let is_within = |d: &WindowDimension| {
            let reach = (d.size - 1).checked_mul(d.window_dilation);
            let is_small = |n: i64| (0..=i64::from(i16::MAX)).contains(&n);
            let reach = reach.filter(|&reach| is_small(reach) && is_small(d.stride));
            let covers = |padding: i64| reach.is_some_and(|reach| padding <= reach);
            d.base_dilation == 1
                && !d.window_reversal
                && d.padding_low >= 0
                && covers(d.padding_low)
                && covers(d.padding_high)
        };
        (is_within(h) && is_within(w)).then_some(Window {
            size: [h.size, w.size],
            stride: [h.stride, w.stride],
            padding: [h.padding_low, w.padding_low],
            dilation: [h.window_dilation, w.window_dilation],
        })
    }

    /// The fields of a structure of the library.
    pub(super) fn fields(&self) -> String {
        format!("{}, {}", tile("stride", self.stride), tile("padding", self.padding))
    }

    /// The same, with the dilation.
    pub(super) fn fields_with_dilation(&self) -> String {
        format!("{}, {}", self.fields(), tile("dilation", self.dilation))
    }
}

fn tile(field: &str, [h, w]: [i64; 2]) -> String {
    format!(".{field} = {{.w = {w}, .h = {h}}}")
}

/// A call of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The arrays that its function takes, with their names in it.
    pub(crate) arrays: Vec<(&'static str, Source)>,
    /// How the library must be compiled for it; `None`: in any way.
    pub(crate) rounding: Option<Rounding>,
    /// Bytes of its own array, which is on the stack.
    pub(crate) stack: u64,
    kernel: &'static str,
    /// The function that says how many bytes the kernel needs, with its arguments.
    needs: Option<String>,
    declarations: String,
    arguments: Vec<String>,
}

impl Call {
    /// The call of a kernel that has parameters of some type, with these fields.
    pub(super) fn new(kernel: &'static str, parameters: &str, fields: &[String]) -> Call {
        let mut declarations = String::new();
        let _ = writeln!(declarations, "    const cmsis_nn_{parameters} parameters = {{");
        let _ = writeln!(declarations, "        {}}};", fields.join(",\n        "));
        Call {
            arrays: Vec::new(),
            rounding: None,
            stack: 0,
            kernel,
            needs: None,
            declarations,
            arguments: vec!["&context".to_string(), "&parameters".to_string()],
        }
    }

    /// An array on the stack, and the function that says what the kernel really needs.
    pub(super) fn with_scratch(self, bytes: i64, needs: impl Into<String>) -> Call {
        Call { stack: (bytes as u64).next_multiple_of(4), needs: Some(needs.into()), ..self }
    }

    /// A multiplier and a shift, in a structure of some type; `more` are further fields.
    pub(super) fn scaled_by(mut self, [multiplier, shift]: [Source; 2], structure: &str, more: &str) -> Call {
        let _ = writeln!(
            self.declarations,
            "    const cmsis_nn_{structure} scale = {{\n        .multiplier = (int32_t *)multiplier, .shift = (int32_t *)shift{more}}};"
        );
        self.arrays.extend([("multiplier", multiplier), ("shift", shift)]);
        self.arguments.push("&scale".to_string());
        self
    }

    /// The extents of an array.
    pub(super) fn over(mut self, name: &str, [n, h, w, c]: Extents) -> Call {
        let _ = writeln!(
            self.declarations,
            "    const cmsis_nn_dims {name}_extents = {{.n = {n}, .h = {h}, .w = {w}, .c = {c}}};"
        );
        self.arguments.push(format!("&{name}_extents"));
        self
    }

    /// An array with its extents.
    pub(super) fn taking(self, name: &'static str, extents: Extents, source: Source) -> Call {
        let mut call = self.over(name, extents);
        call.arguments.push(name.to_string());
        call.arrays.push((name, source));
        call
    }

    /// The result.
    pub(super) fn giving(self, extents: Extents) -> Call {
        self.taking("output", extents, Source::Result)
    }

    pub(super) fn rounding(self, rounding: Rounding) -> Call {
        Call { rounding: Some(rounding), ..self }
    }

    /// The statements.
    pub(crate) fn text(&self) -> String {
        let mut text = self.declarations.clone();
        let buffer = match self.stack {
            0 => ".buf = NULL, .size = 0".to_string(),
            bytes => {
                let _ = writeln!(text, "    s32 scratch[{}];", bytes / 4);
                ".buf = scratch, .size = (int32_t)sizeof scratch".to_string()
            }
        };
        let _ = writeln!(text, "    const cmsis_nn_context context = {{{buffer}}};");
        if let Some(needs) = &self.needs {
            let _ = writeln!(
                text,
                "    if (arm_{needs} > context.size) {{\n        check_status(ARM_CMSIS_NN_ARG_ERROR);\n        return;\n    }}"
            );
        }
        let _ =
            writeln!(text, "    check_status(arm_{}(\n        {}));", self.kernel, self.arguments.join(", "));
        text
    }
}
