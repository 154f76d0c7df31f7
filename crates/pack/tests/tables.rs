//! Reading and writing CSV: accepted files, and errors with their positions.

use memplan_pack::table::Table;

#[track_caller]
fn check_error(text: &str, expected: &str) {
    let error = Table::parse(text.as_bytes()).expect_err("the table is wrong");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn headers_must_have_the_four_columns_once() {
    check_error("", "1:1: the file is empty; a header with id,lower,upper,size is required");
    check_error("id,lower,upper\n", "1:1: the header has no column `size`; id,lower,upper,size are required");
    check_error("id,lower,upper,size,id\n", "1:21: the header has the column `id` twice");
}

#[test]
fn fields_must_be_numbers_that_fit() {
    let header = "id,lower,upper,size,alignment,offset\n";
    let cases = [
        ("a,0,1,-5,,", "2:7: `size` is negative: -5"),
        ("a,0,1,x,,", "2:7: `size` is not a whole number: \"x\""),
        ("a,0,1,,,", "2:7: `size` is not a whole number: \"\""),
        (
            "a,0,1,9223372036854775809,,",
            "2:7: `size` is too large: 9223372036854775809 (the most is 9223372036854775808)",
        ),
        (
            "a,0,99999999999999999999,1,,",
            "2:5: `upper` is too large: 99999999999999999999 (the most is 18446744073709551615)",
        ),
        ("a,5,5,1,,", "2:5: upper (5) is not above lower (5)"),
        ("a,5,3,1,,", "2:5: upper (3) is not above lower (5)"),
        ("a,0,1,8,0,", "2:9: `alignment` is 0"),
        ("a,0,1,8,4,6", "2:11: `offset` (6) is not a multiple of the alignment (4)"),
        ("a,0,1,8,,18446744073709551615", "2:10: offset + size exceeds 2^64"),
    ];
    for (row, expected) in cases {
        check_error(&format!("{header}{row}\n"), expected);
    }
}

#[test]
fn rows_must_be_as_long_as_the_header_and_ids_unique() {
    let header = "id,lower,upper,size\n";
    check_error(&format!("{header}a,0,1\n"), "2:6: the line has 3 fields, the header has 4");
    check_error(&format!("{header}a,0,1,2,3\n"), "2:9: the line has more fields than the 4 of the header");
    check_error(&format!("{header}a,0,1,2\n\nb,0,1,2\na,0,1,2\n"), "5:1: the id \"a\" is already on line 2");
    check_error(&format!("{header}\"a,0,1,2\n"), "2:1: a quoted field does not end with a quote and a comma");
}

#[test]
fn a_million_columns_are_told_not_stored() {
    let commas = ",".repeat(1_000_000);
    let error =
        Table::parse(format!("a{commas}\n").as_bytes()).expect_err("too many, and all without a name");
    assert_eq!((error.line, error.column), (1, 1026));
    let error =
        Table::parse(format!("id,lower,upper,size\na,0,1,2{commas}\n").as_bytes()).expect_err("too long");
    assert_eq!((error.line, error.column), (2, 9));
}

#[test]
fn bytes_that_are_not_text_are_located() {
    let error = Table::parse(b"id,lower,upper,size\na,0,\xff,1\n").expect_err("not UTF-8");
    assert_eq!(error.to_string(), "2:5: the file is not UTF-8 from here on");
}

#[test]
fn answers_keep_the_table_and_gain_offsets() {
    let text = "size,note,id,upper,lower\r\n16,\"a, \"\"b\"\"\",x,2,0\r\n8,,y,3,1";
    let table = Table::parse(text.as_bytes()).expect("nothing is wrong with it");
    assert_eq!((table.id(0), table.id(1)), ("x", "y"));
    let expected = "size,note,id,upper,lower,offset\n16,\"a, \"\"b\"\"\",x,2,0,0\n8,,y,3,1,16\n";
    let answer = table.with_offsets(&[0, 16]);
    assert_eq!(answer, expected);
    let again = Table::parse(answer.as_bytes()).expect("answers are problems");
    assert_eq!(again.problem.items[1].fixed, Some(16));
    assert_eq!(again.with_offsets(&[0, 16]), answer);
}
