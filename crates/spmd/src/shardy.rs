//! Reads Shardy's annotations, as JAX writes them into HLO: meshes of the module, shardings of values, axes of manual
//! computations.
//!
//! ```text
//!   xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=4]>}
//!   xla.sdy.sharding="#sdy.sharding<@mesh, [{"a", ?}, {}]>"
//!   xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{"a"}]>, <@mesh, []>]>"
//!   xla.sdy.manual_axes="#sdy<manual_axes{"b"}>"
//! ```

use memplan_ir::{AxisRef, Mesh};

/// Meshes by name.
#[derive(Debug, Default)]
pub(crate) struct Meshes(Vec<(Box<str>, Mesh)>);

/// One dimension of a sharding: axes of a mesh, and whether propagation may add others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dimension {
    pub(crate) axes: Vec<AxisRef>,
    pub(crate) is_open: bool,
}

/// The sharding of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) mesh: Mesh,
    pub(crate) dimensions: Vec<Dimension>,
}

impl Meshes {
    /// The meshes of a module's note; `None` where it is not understood.
    pub(crate) fn parse(note: &str) -> Option<Meshes> {
        let note = unescaped(note);
        let mut rest = Text(&note);
        let mut meshes = Vec::new();
        while let Some(at) = rest.0.find("#sdy.mesh<") {
            let name = rest.0[..at].trim_end_matches(|c: char| c == '=' || c.is_whitespace());
            let name = name.rsplit(|c: char| !(c.is_alphanumeric() || "_.-$".contains(c))).next()?;
            rest = Text(&rest.0[at + "#sdy.mesh<".len()..]);
            let mut mesh = Mesh::default();
            rest.expect("[")?;
            while !rest.eat("]") {
                let axis = rest.string()?;
                rest.expect("=")?;
                mesh.axes.push((axis.into(), rest.number()?));
                rest.eat(",");
            }
            // Devices in another order.
            if rest.eat(",") {
                return None;
            }
            rest.expect(">")?;
            meshes.push((name.into(), mesh));
        }
        Some(Meshes(meshes))
    }

    /// The shardings in a note, one for each value.
    pub(crate) fn shardings(&self, note: &str) -> Option<Vec<Named>> {
        let note = unescaped(note);
        let mut rest = Text(&note);
        if rest.eat("#sdy.sharding<") {
            return Some(vec![self.sharding(&mut rest)?]);
        }
        rest.expect("#sdy.sharding_per_value<")?;
        rest.expect("[")?;
        let mut all = Vec::new();
        while !rest.eat("]") {
            rest.expect("<")?;
            all.push(self.sharding(&mut rest)?);
            rest.eat(",");
        }
        Some(all)
    }

    /// The manual axes in a note, of the mesh with these axes.
    pub(crate) fn manual_axes(mesh: &Mesh, note: &str) -> Option<Vec<AxisRef>> {
        let note = unescaped(note);
        let mut rest = Text(&note);
        rest.expect("#sdy<manual_axes{")?;
        let mut axes = Vec::new();
        while !rest.eat("}") {
            axes.push(axis(&mut rest, mesh)?);
            rest.eat(",");
        }
        Some(axes)
    }

    /// From the name of the mesh to the closing bracket.
    fn sharding(&self, rest: &mut Text<'_>) -> Option<Named> {
        rest.expect("@")?;
        let end = rest.0.find([',', '>'])?;
        let name = rest.0[..end].trim();
        rest.0 = &rest.0[end..];
        let mesh = &self.0.iter().find(|(other, _)| **other == *name)?.1;
        let mut dimensions = Vec::new();
        rest.expect(",")?;
        rest.expect("[")?;
        while !rest.eat("]") {
            rest.expect("{")?;
            let mut dimension = Dimension::default();
            while !rest.eat("}") {
                if rest.eat("?") {
                    dimension.is_open = true;
                } else {
                    dimension.axes.push(axis(rest, mesh)?);
                }
                rest.eat(",");
            }
            // A priority.
            if rest.eat("p") {
                rest.number()?;
            }
            dimensions.push(dimension);
            rest.eat(",");
        }
        while rest.eat(",") {
            // Axes that must not cut it are as good as closed dimensions; sums that are still owed are not known here.
            rest.expect("replicated={")?;
            let end = rest.0.find('}')?;
            rest.0 = &rest.0[end + 1..];
        }
        rest.expect(">")?;
        Some(Named { mesh: mesh.clone(), dimensions })
    }
}

/// An axis, or `"a":(2)4`: the part of extent 4 below parts of extent 2.
fn axis(rest: &mut Text<'_>, mesh: &Mesh) -> Option<AxisRef> {
    let name = rest.string()?;
    let axis = mesh.axes.iter().position(|(other, _)| **other == *name)? as u32;
    let mut sub_axis = None;
    if rest.eat(":") {
        rest.expect("(")?;
        let before = rest.number()?;
        rest.expect(")")?;
        sub_axis = Some((before, rest.number()?));
    }
    Some(AxisRef { axis, sub_axis })
}

/// Notes may be kept with the quotes of their text escaped.
fn unescaped(note: &str) -> String {
    note.trim_matches('"').replace("\\\"", "\"")
}

struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn eat(&mut self, token: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Option<()> {
        self.eat(token).then_some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        self.expect("\"")?;
        let (string, rest) = self.0.split_once('"')?;
        self.0 = rest;
        Some(string)
    }

    fn number(&mut self) -> Option<i64> {
        let text = self.0.trim_start();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        self.0 = &text[end..];
        text[..end].parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_notes_as_jax_writes_them() {
        let meshes = Meshes::parse("{mesh = #sdy.mesh<[\"a\"=2, \"b\"=4]>}").expect("a mesh");
        let note = "#sdy.sharding_per_value<[<@mesh, [{\\\"a\\\", ?}, {}]>, <@mesh, []>]>";
        let found = meshes.shardings(note).expect("shardings");
        assert_eq!(found.len(), 2);
        let a = AxisRef { axis: 0, sub_axis: None };
        assert_eq!(found[0].dimensions[0], Dimension { axes: vec![a], is_open: true });
        assert_eq!(found[0].dimensions[1], Dimension::default());
        assert!(found[1].dimensions.is_empty());
        let part =
            meshes.shardings("#sdy.sharding<@mesh, [{\"b\":(2)2}], replicated={\"a\"}>").expect("a part");
        assert_eq!(part[0].dimensions[0].axes, [AxisRef { axis: 1, sub_axis: Some((2, 2)) }]);
        let manual = Meshes::manual_axes(&found[0].mesh, "#sdy<manual_axes{\"a\", \"b\"}>").expect("axes");
        assert_eq!(manual.len(), 2);
        assert_eq!(Meshes::parse("{m = #sdy.mesh<[\"a\"=2], device_ids=[1, 0]>}").map(|_| ()), None);
    }
}
