//! Names: what can begin the names of a file, and that names of the program are names of C.

use memplan_c99::is_identifier;

use crate::support::{compare, compilers, expected, run, written, written_as_given};

#[test]
fn identifiers() {
    for name in ["net", "net_2", "Net"] {
        assert!(is_identifier(name), "{name}");
    }
    for name in ["", "2net", "my-net", "int", "net.v1", "arena", "_net"] {
        assert!(!is_identifier(name), "{name}");
    }
}

/// Instructions may have names that C reserves, or that differ only in what C's names cannot have.
#[test]
fn names_of_the_program_are_no_words_of_c() {
    let text = "HloModule m
ENTRY e {
  int = f32[4] parameter(0)
  a.b = f32[4] parameter(1)
  a-b = f32[4] parameter(2)
  x = f32[4] add(int, a.b)
  abs = f32[4] abs(x)
  exp = f32[4] sine(abs)
  w = f32[4] constant({1, 2, 3, 4})
  w_1 = f32[4] reverse(w), dimensions={0}
  net = f32[4] add(w_1, exp)
  net_run = f32[4] reverse(net), dimensions={0}
  max_f32 = f32[4] maximum(net_run, a.b)
  one = s32[] parameter(3)
  add_s32 = s32[] add(one, one)
  more = f32[] convert(add_s32)
  lot = f32[4] broadcast(more), dimensions={}
  sum = f32[4] add(max_f32, lot)
  ROOT memcpy = f32[4] multiply(sum, a-b)
}";
    for of in [written, written_as_given] {
        let program = of(memplan_hlo::parse(text).unwrap(), "cpu", "net").unwrap().unwrap();
        for name in ["*int_", "*a_b"] {
            assert!(program.sources.c.contains(name), "{name}");
        }
        let inputs = memplan_testkit::random_inputs(&program.module, 1);
        let expected = expected(&program, &inputs).unwrap();
        for compiler in compilers() {
            let found = run(compiler, &[&program], std::slice::from_ref(&inputs)).unwrap();
            compare(&found[0], &expected, 2e-5).unwrap();
        }
    }
}
