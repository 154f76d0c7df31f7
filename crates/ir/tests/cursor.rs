//! Instructions made in the middle of a module.

use memplan_ir::ElementType::F32;
use memplan_ir::{
    BinaryOp, Cursor, Insert as _, InstructionId, Module, ModuleBuilder, Names, Shape, UnaryOp, verify,
};

/// `y` is the negative of `x`.
fn negative() -> (Module, [InstructionId; 2]) {
    let mut module = ModuleBuilder::new("negative");
    let mut main = module.computation("main");
    let x = main.parameter("x", Shape::array(F32, [4]));
    let y = main.unary(UnaryOp::Negate, x).expect("arrays have negatives");
    let main = main.finish(y).expect("the root is ours");
    (module.finish(main).expect("the module is valid"), [x, y])
}

#[test]
fn instructions_go_where_the_cursor_is() {
    let (mut module, [x, y]) = negative();
    let mut names = Names::new(&module);
    let mut before = Cursor::before(&mut module, &mut names, y);
    let (a, b) = (before.unary(UnaryOp::Abs, x), before.unary(UnaryOp::Tan, x));
    let c = Cursor::after(&mut module, &mut names, x).unary(UnaryOp::Sqrt, x);
    let d = Cursor::beside(&mut module, &mut names, x).unary(UnaryOp::Cbrt, y);
    let mut list = Vec::new();
    let main = module.entry;
    let e = Cursor::into_list(&mut module, &mut names, main, &mut list).copy_of(d, [d]);
    Cursor::unlisted(&mut module, &mut names, main).copy_of(d, [d]);
    assert_eq!(module.entry_computation().instructions, [x, c, a, b, y, d]);
    assert_eq!(list, [e]);
    verify(&module).expect("the module is valid");
}

#[test]
fn names_are_asked_for_or_follow_the_operation() {
    let (mut module, [x, _]) = negative();
    let mut names = Names::new(&module);
    let mut at = Cursor::beside(&mut module, &mut names, x);
    let made = [
        at.named("half").unary(UnaryOp::Abs, x),
        at.unary(UnaryOp::Abs, x),
        at.named_unique("x").unary(UnaryOp::Abs, x),
        at.named_exactly("z").unary(UnaryOp::Abs, x),
    ];
    let found = made.map(|id| &*module.instructions[id].name);
    assert_eq!(found, ["half.1", "abs.2", "x.5", "z"]);
}

#[test]
#[should_panic(expected = "cannot insert add: operands 0 and 1 must have the same extents")]
fn invalid_operations_are_refused_with_the_reason() {
    let (mut module, [x, _]) = negative();
    let mut names = Names::new(&module);
    let mut at = Cursor::beside(&mut module, &mut names, x);
    let wide = at.broadcast(x, [4, 4], [0]);
    at.binary(BinaryOp::Add, x, wide);
}
