//! Lowering: turns instructions into a program that computes some of their elements.
//!
//! Elements are pulled: an instruction's elements at certain indices need its operands' elements at other indices. A
//! *domain* is such a list of indices, one per lane, in registers. A broadcast drops rows of a domain, a transpose
//! permutes them, a slice shifts them, a gather looks them up; none of them moves data. The pair (instruction, domain)
//! names a value and is lowered once.

use std::hash::BuildHasherDefault;

use indexmap::IndexSet;
use memplan_ir::scopes::{self, Name, NotPassed, Scopes};
use memplan_ir::{ArrayShape, Dimensions, ElementType, Module};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::{SmallVec, smallvec};

use crate::Error;
use crate::element::Class;
use crate::program::{KernelCode, Level, Reg, Source, Step, StepOp, fixed};
use memplan_memory::Addressing;

/// Steps in one program. A fusion of slices of slices of the same value can need exponentially many; beyond this its
/// interior is put into memory instead.
const MAX_STEPS: usize = 1 << 15;

/// Index of one dimension, per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ix {
    Constant(i64),
    Reg(Reg),
}

/// The elements of an array that the lanes represent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Domain {
    pub(crate) extents: Dimensions,
    pub(crate) form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// One index per dimension.
    Rows(SmallVec<[Ix; 6]>),
    /// Row-major positions.
    Linear(Ix),
}

pub(crate) type DomainId = usize;

/// Where a value comes from: an array in memory, a value per lane, or an instruction that computes it.
pub(crate) type Leaf = scopes::Leaf<usize, Reg>;

/// An array that programs read.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) source: u32,
    pub(crate) element_type: ElementType,
    pub(crate) addressing: Addressing,
}

/// Why a value could not be lowered yet, or at all.
pub(crate) enum Need {
    Values(SmallVec<[(Name, DomainId); 3]>),
    Failed(Error),
}

impl From<Error> for Need {
    fn from(error: Error) -> Need {
        Need::Failed(error)
    }
}

/// A program under construction.
pub(crate) struct Lower<'m> {
    pub(crate) module: &'m Module,
    pub(crate) program: KernelCode,
    levels: Vec<Level>,
    steps: FxHashMap<(StepOp, SmallVec<[Reg; 3]>), Reg>,
    pub(crate) scopes: Scopes<'m, usize, Reg>,
    maps: FxHashMap<(Name, DomainId), usize>,
    domains: IndexSet<Domain, BuildHasherDefault<FxHasher>>,
    values: FxHashMap<(Name, DomainId), Reg>,
    pub(crate) arrays: Vec<Array>,
}

impl<'m> Lower<'m> {
    pub(crate) fn new(module: &'m Module) -> Lower<'m> {
        let mut lower = Lower {
            module,
            program: KernelCode::default(),
            levels: Vec::new(),
            steps: FxHashMap::default(),
            scopes: Scopes::new(module),
            maps: FxHashMap::default(),
            domains: IndexSet::default(),
            values: FxHashMap::default(),
            arrays: Vec::new(),
        };
        assert_eq!(lower.register(Class::Int, Level::Batch), fixed::POSITION);
        assert_eq!(lower.register(Class::Int, Level::Inner), fixed::INNER);
        lower
    }

    /// A register that the kernel sets.
    pub(crate) fn register(&mut self, class: Class, level: Level) -> Reg {
        self.program.classes.push(class);
        self.levels.push(level);
        self.levels.len() as Reg - 1
    }

    /// Declares operand `number` of the kernel an array to read.
    pub(crate) fn operand(&mut self, number: usize, shape: &ArrayShape) -> Result<usize, Error> {
        let addressing = addressing(shape)?;
        let source = Source::Operand { number, packed_bits: addressing.packed_bits };
        Ok(self.array(source, shape.element_type, addressing))
    }

    pub(crate) fn array(
        &mut self,
        source: Source,
        element_type: ElementType,
        addressing: Addressing,
    ) -> usize {
        self.program.sources.push(source);
        let source = self.program.sources.len() as u32 - 1;
        self.arrays.push(Array { source, element_type, addressing });
        self.arrays.len() - 1
    }

    pub(crate) fn domain(&mut self, domain: Domain) -> DomainId {
        self.domains.insert_full(domain).0
    }

    /// The domain of the elements at row-major positions.
    pub(crate) fn linear_domain(&mut self, extents: &[i64], position: Reg) -> DomainId {
        self.domain(Domain { extents: extents.into(), form: Form::Linear(Ix::Reg(position)) })
    }

    /// The domain of a scalar.
    pub(crate) fn scalar_domain(&mut self) -> DomainId {
        self.domain(Domain { extents: smallvec![], form: Form::Rows(smallvec![]) })
    }

    pub(crate) fn rows_domain(&mut self, extents: &[i64], rows: SmallVec<[Ix; 6]>) -> DomainId {
        self.domain(Domain { extents: extents.into(), form: Form::Rows(rows) })
    }

    pub(crate) fn extents(&self, domain: DomainId) -> &Dimensions {
        &self.domains[domain].extents
    }

    pub(crate) fn form(&self, domain: DomainId) -> &Form {
        &self.domains[domain].form
    }

    /// The number of the operand that an array is, if it is one.
    pub(crate) fn operand_number(&self, array: usize) -> Option<usize> {
        match self.program.sources[self.arrays[array].source as usize] {
            Source::Operand { number, .. } => Some(number),
            Source::Literal(_) => None,
        }
    }

    /// The result of `f` after all values that it needs are lowered.
    pub(crate) fn complete<T>(&mut self, f: impl Fn(&mut Self) -> Result<T, Need>) -> Result<T, Error> {
        loop {
            match f(self) {
                Ok(result) => return Ok(result),
                Err(Need::Failed(error)) => return Err(error),
                Err(Need::Values(missing)) => {
                    for (name, domain) in missing {
                        self.value(name, domain)?;
                    }
                }
            }
        }
    }

    /// The register with the elements of a value at a domain.
    pub(crate) fn value(&mut self, name: Name, domain: DomainId) -> Result<Reg, Error> {
        // An explicit stack, because fusions may be deeper than the machine's.
        let mut pending = vec![(name, domain)];
        while let Some(&(name, domain)) = pending.last() {
            match self.try_value(name, domain) {
                Ok(register) if pending.len() == 1 => return Ok(register),
                Ok(_) => _ = pending.pop(),
                Err(Need::Values(missing)) => pending.extend(missing),
                Err(Need::Failed(error)) => return Err(error),
            }
            if self.levels.len() > MAX_STEPS || pending.len() > 8 * MAX_STEPS {
                return Err(Error::unsupported(self.module, name.instruction, TOO_COMPLEX));
            }
        }
        unreachable!("the loop ends when the value asked for is there")
    }

    /// The register of a value whose operands are lowered, or the missing operand.
    fn try_value(&mut self, name: Name, domain: DomainId) -> Result<Reg, Need> {
        let name = match self.resolve(name)? {
            Leaf::Element(register) => return Ok(register),
            Leaf::Array(array) => return Ok(self.load(array, domain)),
            Leaf::Value(name) => name,
        };
        if let Some(&register) = self.values.get(&(name, domain)) {
            return Ok(register);
        }
        let register = self.emit(name, domain)?;
        self.values.insert((name, domain), register);
        Ok(register)
    }

    /// The registers of several values, or all that are missing.
    pub(crate) fn all<const N: usize>(&mut self, wanted: [(Name, DomainId); N]) -> Result<[Reg; N], Need> {
        let registers = self.many(wanted)?;
        Ok(std::array::from_fn(|i| registers[i]))
    }

    /// As [`Lower::all`] for any number of values.
    pub(crate) fn many(
        &mut self,
        wanted: impl IntoIterator<Item = (Name, DomainId)>,
    ) -> Result<SmallVec<[Reg; 4]>, Need> {
        let (mut registers, mut missing) = (SmallVec::new(), SmallVec::new());
        for (name, domain) in wanted {
            match self.resolve(name)? {
                Leaf::Element(register) => registers.push(register),
                Leaf::Array(array) => registers.push(self.load(array, domain)),
                Leaf::Value(name) => match self.values.get(&(name, domain)) {
                    Some(&register) => registers.push(register),
                    None => missing.push((name, domain)),
                },
            }
        }
        if missing.is_empty() { Ok(registers) } else { Err(Need::Values(missing)) }
    }

    /// Where a leaf is stored or computed.
    pub(crate) fn resolve(&mut self, name: Name) -> Result<Leaf, Error> {
        let passes_else = |NotPassed(id)| Error::invalid(self.module, id, "a call passes something else");
        self.scopes.resolve(name).map_err(passes_else)
    }

    /// The instance of a map's computation for the elements of a domain.
    pub(crate) fn map_scope(&mut self, name: Name, domain: DomainId, parameters: Vec<Vec<Leaf>>) -> usize {
        if let Some(&scope) = self.maps.get(&(name, domain)) {
            return scope;
        }
        let scope = self.scopes.open(parameters);
        self.maps.insert((name, domain), scope);
        scope
    }

    /// Appends a step, or finds an equal one.
    pub(crate) fn step(&mut self, op: StepOp, class: Class, inputs: impl IntoIterator<Item = Reg>) -> Reg {
        let inputs: SmallVec<[Reg; 3]> = inputs.into_iter().collect();
        let key = (op, inputs);
        if let Some(&register) = self.steps.get(&key) {
            return register;
        }
        let level = key.1.iter().map(|&r| self.levels[r as usize]).max().unwrap_or(Level::Uniform);
        let output = self.register(class, level);
        let step = Step { op: key.0.clone(), inputs: key.1.clone(), output };
        self.program.steps[level as usize].push(step);
        self.steps.insert(key, output);
        output
    }

    /// The register of an index.
    pub(crate) fn index(&mut self, ix: Ix) -> Reg {
        match ix {
            Ix::Reg(register) => register,
            Ix::Constant(value) => {
                let bytes = SmallVec::from_slice(&value.to_le_bytes());
                self.step(StepOp::Constant(ElementType::S64, bytes), Class::Int, [])
            }
        }
    }

    /// `base + weight * index + ...`
    pub(crate) fn weighted(&mut self, terms: &[(Ix, i64)], base: i64) -> Ix {
        let mut base = base;
        let mut by_level: [SmallVec<[(Reg, i64); 4]>; 3] = Default::default();
        for &(ix, weight) in terms {
            match ix {
                Ix::Constant(value) => base += value * weight,
                Ix::Reg(_) if weight == 0 => {}
                Ix::Reg(register) => {
                    by_level[self.levels[register as usize] as usize].push((register, weight))
                }
            }
        }
        // Outer levels first, so that what does not change in an inner loop is added up once.
        let mut sum = Ix::Constant(base);
        for terms in by_level.into_iter().filter(|terms| !terms.is_empty()) {
            let (mut weights, mut inputs): (SmallVec<[i64; 4]>, SmallVec<[Reg; 4]>) =
                (terms.iter().map(|t| t.1).collect(), terms.iter().map(|t| t.0).collect());
            let base = match sum {
                Ix::Constant(value) => value,
                Ix::Reg(register) => {
                    weights.push(1);
                    inputs.push(register);
                    0
                }
            };
            sum = if base == 0 && weights[..] == [1] {
                Ix::Reg(inputs[0])
            } else {
                Ix::Reg(self.step(StepOp::Weighted { weights, base }, Class::Int, inputs))
            };
        }
        sum
    }

    pub(crate) fn digit(&mut self, ix: Ix, divisor: i64, modulus: i64) -> Ix {
        match ix {
            Ix::Constant(value) if modulus == 0 => Ix::Constant(value / divisor),
            Ix::Constant(value) => Ix::Constant(value / divisor % modulus),
            Ix::Reg(_) if modulus == 1 => Ix::Constant(0),
            Ix::Reg(register) if divisor == 1 && modulus == 0 => Ix::Reg(register),
            Ix::Reg(register) => {
                Ix::Reg(self.step(StepOp::Digit { divisor, modulus }, Class::Int, [register]))
            }
        }
    }

    /// The indices of a domain, one per dimension.
    pub(crate) fn rows(&mut self, domain: DomainId) -> SmallVec<[Ix; 6]> {
        let Domain { extents, form } = &self.domains[domain];
        match form {
            Form::Rows(rows) => rows.clone(),
            &Form::Linear(position) => self.unravel(&extents.clone(), position),
        }
    }

    /// The indices of row-major positions.
    pub(crate) fn unravel(&mut self, extents: &[i64], position: Ix) -> SmallVec<[Ix; 6]> {
        let mut rows: SmallVec<[Ix; 6]> = smallvec![Ix::Constant(0); extents.len()];
        let mut divisor = 1i64;
        let major = extents.iter().position(|&e| e != 1).unwrap_or(0);
        for (d, &extent) in extents.iter().enumerate().rev() {
            if extent != 1 {
                // The most major digit needs no modulus: positions are within the array.
                rows[d] = self.digit(position, divisor, if d == major { 0 } else { extent.max(1) });
            }
            divisor = divisor.saturating_mul(extent.max(1));
        }
        rows
    }

    /// The row-major positions of a domain.
    pub(crate) fn linear(&mut self, domain: DomainId) -> Ix {
        match self.domains[domain].form.clone() {
            Form::Linear(position) => position,
            Form::Rows(rows) => {
                let mut stride = 1;
                let mut terms: SmallVec<[(Ix, i64); 6]> = smallvec![];
                for (&row, &extent) in rows.iter().zip(&self.domains[domain].extents).rev() {
                    terms.push((row, stride));
                    stride *= extent.max(1);
                }
                self.weighted(&terms, 0)
            }
        }
    }

    /// The same elements in row-major order under other extents.
    pub(crate) fn reshaped(&mut self, domain: DomainId, extents: &[i64]) -> DomainId {
        let from = self.domains[domain].clone();
        let keeps_rows = from.extents.iter().filter(|&&e| e != 1).eq(extents.iter().filter(|&&e| e != 1));
        let form = match from.form {
            Form::Rows(rows) if keeps_rows => {
                let mut kept = rows.iter().zip(&from.extents).filter(|&(_, &e)| e != 1).map(|(&row, _)| row);
                let row = |&e: &i64| {
                    if e == 1 { Ix::Constant(0) } else { kept.next().expect("as many extents are not 1") }
                };
                Form::Rows(extents.iter().map(row).collect())
            }
            _ => Form::Linear(self.linear(domain)),
        };
        self.domain(Domain { extents: extents.into(), form })
    }

    /// The offsets of a domain's elements.
    pub(crate) fn offsets(&mut self, addressing: &Addressing, unit: i64, domain: DomainId) -> Ix {
        if addressing.is_row_major
            && let Form::Linear(position) = self.domains[domain].form
        {
            return self.weighted(&[(position, unit)], 0);
        }
        let rows = self.rows(domain);
        let mut terms: SmallVec<[(Ix, i64); 6]> = smallvec![];
        for (digits, &row) in addressing.dimensions.iter().zip(&rows) {
            for d in digits {
                terms.push((self.digit(row, d.divisor, d.modulus), d.stride));
            }
        }
        self.weighted(&terms, 0)
    }

    /// The elements of an array at a domain.
    fn load(&mut self, array: usize, domain: DomainId) -> Reg {
        let Array { source, element_type, addressing } = self.arrays[array].clone();
        let class = Class::of(element_type);
        if addressing.is_row_major && self.domains[domain].form == Form::Linear(Ix::Reg(fixed::POSITION)) {
            return self.step(StepOp::LoadConsecutive { source, element_type }, class, [fixed::POSITION]);
        }
        let offsets = self.offsets(&addressing, element_type.byte_width() as i64, domain);
        let offsets = self.index(offsets);
        self.step(StepOp::Load { source, element_type }, class, [offsets])
    }
}

/// Reason for putting the interior of a fusion into memory.
pub(crate) const TOO_COMPLEX: &str = "it needs too many steps per element";

/// The addressing of a shape, or why it has none.
pub(crate) fn addressing(shape: &ArrayShape) -> Result<Addressing, Error> {
    Addressing::new(shape)
        .ok_or_else(|| Error::Layout { shape: format!("{}{:?}", shape.element_type, shape.dimensions) })
}
