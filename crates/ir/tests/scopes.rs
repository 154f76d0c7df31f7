//! Leaves followed through calls and tuples.

use memplan_ir::scopes::{Leaf, Name, NotPassed, Scopes};
use memplan_ir::{ElementType::F32, Insert, ModuleBuilder, Shape, UnaryOp};

#[test]
fn a_leaf_is_followed_through_calls_and_tuples() {
    let mut builder = ModuleBuilder::new("m");
    let mut swap = builder.computation("swap");
    let a = swap.parameter("a", Shape::array(F32, [2]));
    let b = swap.parameter("b", Shape::array(F32, [2]));
    let both = swap.tuple([b, a]).unwrap();
    let swap = swap.finish(both).unwrap();
    let mut main = builder.computation("main");
    let x = main.parameter("x", Shape::array(F32, [2]));
    let y = main.unary(UnaryOp::Exponential, x).unwrap();
    let called = main.call(swap, [x, y]).unwrap();
    let first = main.get_tuple_element(called, 0).unwrap();
    let second = main.get_tuple_element(called, 1).unwrap();
    let root = main.tuple([first, second]).unwrap();
    let main = main.finish(root).unwrap();
    let module = builder.finish(main).unwrap();

    let mut scopes: Scopes<'_, char, ()> = Scopes::new(&module);
    let entry = scopes.open(vec![vec![Leaf::Array('x')]]);
    let of = |leaf| Name { scope: entry, instruction: root, leaf };
    assert_eq!(scopes.resolve(of(0)), Ok(Leaf::Value(Name { scope: entry, instruction: y, leaf: 0 })));
    assert_eq!(scopes.resolve(of(1)), Ok(Leaf::Array('x')));
    scopes.store(Name { scope: entry, instruction: y, leaf: 0 }, Leaf::Array('y'));
    assert_eq!(scopes.resolve(of(0)), Ok(Leaf::Array('y')));

    let mut empty: Scopes<'_, char, ()> = Scopes::new(&module);
    empty.open(Vec::new());
    assert_eq!(empty.resolve(of(1)), Err(NotPassed(x)));
}
