//! Names: what can begin the names of a file, and that names of the program are names of C.

use memplan_c99::is_identifier;

use crate::support::written;

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
  exp = f32[4] sine(x)
  ROOT memcpy = f32[4] multiply(exp, a-b)
}";
    let module = memplan_hlo::parse(text).unwrap();
    let program = written(module, "cpu", "net").unwrap().unwrap();
    assert!(program.sources.c.contains("const mem_f32 *int_, const mem_f32 *a_b, const mem_f32 *a_b_v2"));
    for compiler in crate::support::compilers() {
        let inputs = memplan_testkit::random_inputs(&program.module, 1);
        crate::support::run(compiler, &[&program], &[inputs]).unwrap();
    }
}
