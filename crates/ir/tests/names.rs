//! Names of new instructions.

use memplan_ir::Names;

#[test]
fn names_that_look_like_fresh_ones_are_passed_over() {
    let mut names = Names::default();
    assert!(names.take("copy.1") && !names.take("copy.1"));
    assert_eq!([names.fresh("copy"), names.fresh("copy")], ["copy.2".into(), "copy.3".into()]);
    assert_eq!([names.unique("a"), names.unique("a")], ["a".into(), "a.4".into()]);
    names.give_back("a");
    assert_eq!(names.unique("a"), "a".into());
}
