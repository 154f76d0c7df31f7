//! What is known of every operation agrees.

use memplan_ir::*;
use strum::IntoEnumIterator;

fn exactly(n: usize) -> Arity {
    Arity { min: n, max: n, step: 1 }
}

#[test]
fn parts_of_asynchronous_operations_know_each_other() {
    for opcode in Opcode::iter() {
        let Traits { role, next, previous, .. } = opcode.traits();
        assert!(next.iter().all(|part| part.traits().previous.contains(&opcode)), "{opcode}");
        assert!(previous.iter().all(|part| part.traits().next.contains(&opcode)), "{opcode}");
        assert_eq!(!next.is_empty(), matches!(role, Role::Starts | Role::Continues), "{opcode}");
        assert_eq!(!previous.is_empty(), matches!(role, Role::Ends | Role::Continues), "{opcode}");
    }
}

#[test]
fn what_calls_says_what_for() {
    for opcode in Opcode::iter() {
        let traits = opcode.traits();
        assert_eq!(traits.callees == Callees::None, traits.called == exactly(0), "{opcode}");
    }
}

#[test]
fn unary_and_binary_operations_are_elementwise() {
    for op in UnaryOp::iter() {
        let traits = op.opcode().traits();
        assert_eq!((traits.access, traits.operands), (Access::Elementwise, exactly(1)), "{op:?}");
    }
    for op in BinaryOp::iter() {
        let traits = op.opcode().traits();
        assert_eq!((traits.access, traits.operands), (Access::Elementwise, exactly(2)), "{op:?}");
    }
}
