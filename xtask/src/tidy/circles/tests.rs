use super::*;

fn found(files: &[(&str, &str)]) -> Vec<String> {
    let file = |(path, text): &(&str, &str)| (PathBuf::from(path), (*text).to_owned());
    check(&files.iter().map(file).collect::<Vec<_>>())
}

#[test]
fn a_circle_is_found_through_the_reexports_of_a_parent() {
    let findings = found(&[
        ("a/src/lib.rs", "mod comm;"),
        ("a/src/comm.rs", "mod base;\nmod route;\npub use base::{Fast, Slow as Late};"),
        ("a/src/comm/base.rs", "use super::route::Route;"),
        ("a/src/comm/route.rs", "mod deep;"),
        ("a/src/comm/route/deep.rs", "fn f() -> crate::comm::Late { late() }"),
    ]);
    let text = "a/src/comm: a circle of modules: base names super::route::Route, route names crate::comm::Late";
    assert_eq!(findings, [text]);
}

#[test]
fn a_circle_of_three_is_found_once() {
    let findings = found(&[
        ("a/src/main.rs", ""),
        ("a/src/x.rs", "use crate::y::{self, Y as Late};"),
        ("a/src/y.rs", "use crate::z;\nfn f() { z::f() }"),
        ("a/src/z.rs", "fn f() { crate::x::f() }"),
    ]);
    assert_eq!(
        findings,
        ["a/src: a circle of modules: x names crate::y, y names crate::z, z names crate::x::f"]
    );
}

#[test]
fn what_is_no_circle_is_not_reported() {
    let findings = found(&[
        ("a/src/lib.rs", "pub mod x;\nmod y;\npub use x::X;"),
        // A child names its parent, a comment, a string, and a test.
        (
            "a/src/x.rs",
            "//! crate::y\nmod below;\nconst X: &str = \"crate::y\";\n#[cfg(test)]\nmod tests {\n    use crate::y;\n}",
        ),
        ("a/src/x/below.rs", "use super::X;"),
        ("a/src/y.rs", "use crate::X;\nuse std::x::y;"),
        // A re-export is no use.
        ("a/src/raw.rs", "pub use crate::z::Z;\npub struct Raw;"),
        ("a/src/z.rs", "use crate::raw::Raw;"),
        // Another crate has modules of the same names.
        ("b/src/lib.rs", ""),
        ("b/src/x.rs", "use crate::y::Y;"),
        ("b/src/y.rs", "use a::x::X;"),
    ]);
    assert!(findings.is_empty(), "{findings:?}");
}
