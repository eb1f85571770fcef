use super::{after_word, code_only};

#[track_caller]
fn assert_code(source: &str, expected: &str) {
    assert_eq!(code_only(source), expected);
}

#[test]
fn comments_are_not_code() {
    assert_code("a // b\nc", "a  \nc");
    assert_code("a /* b /* c */ d\n */ e", "a  \n e");
    assert_code("/// docs\nfn f() {}", " \nfn f() {}");
}

#[test]
fn an_open_comment_or_string_ends_with_the_file() {
    assert_code("a /* b", "a  ");
    assert_code("a \"b", "a  ");
    assert_code("a r#\"b\"", "a  ");
    assert_code("/*é", " ");
}

#[test]
fn strings_are_not_code() {
    assert_code(r#"f("// \" /*") + 1"#, "f( ) + 1");
    assert_code(r##"f(r#"a " b"#, br"\", c"d") + 1"##, "f( ,  , c ) + 1");
    assert_code("\"a\nb\" c", " \n c");
}

#[test]
fn raw_identifiers_and_names_that_end_in_r_are_code() {
    assert_code("r#type + for\"x\"", "r#type + for ");
}

#[test]
fn character_literals_are_told_from_lifetimes() {
    assert_code(r"['\'', '/', '\u{41}', '\\', 'é']", "[ ,  ,  ,  ,  ]");
    assert_code(
        "fn f<'a>(x: &'a str, y: &'static [u8]) {}",
        "fn f<'a>(x: &'a str, y: &'static [u8]) {}",
    );
    assert_code("b'\"' x", "b  x");
}

#[test]
fn a_word_is_whole() {
    assert_eq!(after_word("x = unsafe { y }", "unsafe"), Some(" { y }"));
    assert_eq!(after_word("forbid(unsafe_code)", "unsafe"), None);
    assert_eq!(after_word("not_unsafe unsafe!", "unsafe"), Some("!"));
}
