//! Shardings by mesh axes as arrays of devices, and local shapes, as JAX 0.10.2 prints them for a mesh of 2 by 4.

use memplan_hlo::{parse, print};
use memplan_ir::{ArrayShape, ElementType, Module, Sharding, ShardingKind, ShardingSpec};

fn module(rank: usize, sharding: &str) -> Module {
    let shape = ["f32[]", "f32[8]", "f32[8,8]"][rank];
    parse(&format!("HloModule m\nENTRY e {{ ROOT p = {shape} parameter(0), sharding={sharding} }}\n"))
        .unwrap_or_else(|error| panic!("{sharding}: {error:?}"))
}

fn spec(module: &mut Module) -> &mut ShardingSpec {
    let root = module.entry_computation().root;
    match module.instructions[root].extras.as_mut().and_then(|extras| extras.sharding.as_mut()) {
        Some(Sharding::Single(spec)) => spec,
        other => panic!("{other:?}"),
    }
}

/// The text of a sharding by mesh axes as an array of devices; `None` when it has none.
fn tiled(rank: usize, named: &str) -> Option<String> {
    let mut module = module(rank, named);
    let spec = spec(&mut module);
    let ShardingKind::Named(named) = &spec.kind else { panic!("{named} is no mesh sharding") };
    spec.kind = named.to_tiled()?;
    let text = print(&module);
    let start = text.find("sharding=").expect("it is printed") + "sharding=".len();
    Some(text[start..].lines().next().unwrap_or_default().to_string())
}

#[test]
fn rows_as_jax_prints_them() {
    let mesh = "mesh['a'=2,'b'=4]";
    let rows = [
        (2, "[{'a'},{'b'}]", "{devices=[2,4]<=[8]}"),
        (2, "[{'a'},{}]", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
        (2, "[{},{'b'}]", "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"),
        (2, "[{'b','a'},{}]", "{devices=[8,1]<=[2,4]T(1,0)}"),
        (1, "[{'a'}]", "{devices=[2,4]<=[8] last_tile_dim_replicate}"),
        (2, "[{},{}]", "{replicated}"),
        // Further: the whole mesh in order, the other order, a part of an axis, manual axes.
        (2, "[{'a','b'},{}]", "{devices=[8,1]<=[8]}"),
        (2, "[{'b'},{'a'}]", "{devices=[4,2]<=[2,4]T(1,0)}"),
        (1, "[{'b':(1)2}]", "{devices=[2,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}"),
        (1, "[{'a'}], manual={'b'}", "{devices=[2,4]<=[8] last_tile_dims={manual}}"),
    ];
    for (rank, dimensions, expected) in rows {
        assert_eq!(
            tiled(rank, &format!("{{{mesh}, {dimensions}}}")).as_deref(),
            Some(expected),
            "{dimensions}"
        );
    }
    assert_eq!(tiled(2, "{mesh['a'=2,'b'=4], [{'a'},{'a'}]}"), None, "an axis is used once");
}

#[test]
fn local_shapes() {
    let shape = |dimensions: [i64; 2]| ArrayShape::new(ElementType::F32, dimensions);
    let mut module = module(2, "{devices=[4,1]<=[4]}");
    let spec = spec(&mut module);
    assert_eq!(spec.local_shape(&shape([10, 6])), shape([3, 6]));
    assert_eq!(spec.padded_shape(&shape([10, 6])), shape([12, 6]));
    assert_eq!(spec.local_shape(&shape([8, 6])), shape([2, 6]));
    assert_eq!(spec.local_shape(&shape([0, 6])), shape([0, 6]));
    spec.kind = ShardingKind::Replicated;
    assert_eq!(spec.local_shape(&shape([10, 6])), shape([10, 6]));
}

#[test]
fn named_and_tiled_cut_alike() {
    for dimensions in ["[{'a'},{'b'}]", "[{'b','a'},{}]", "[{},{'a':(1)2}]"] {
        let mut module = module(2, &format!("{{mesh['a'=4,'b'=3], {dimensions}}}"));
        let spec = spec(&mut module);
        let named = spec.shards(2);
        let ShardingKind::Named(sharding) = &spec.kind else { unreachable!() };
        spec.kind = sharding.to_tiled().unwrap();
        assert_eq!(spec.shards(2), named, "{dimensions}");
    }
}
