use super::*;

#[track_caller]
fn assert_findings(path: &str, text: &str, lines: &[usize]) {
    let findings = check(Path::new(path), text);
    let found: Vec<usize> = findings.iter().map(|(line, _)| *line).collect();
    assert_eq!(found, lines, "{findings:?}");
}

#[test]
fn long_files_are_found() {
    assert_findings("core/src/a.rs", &"\n".repeat(LINES_MAX), &[]);
    assert_findings("core/src/a.rs", &"\n".repeat(LINES_MAX + 1), &[LINES_MAX + 1]);
    assert_findings("Cargo.toml", &"\n".repeat(LINES_MAX + 1), &[]);
}

#[test]
fn unfinished_work_is_found() {
    for word in UNFINISHED_WORDS {
        assert_findings("a/b.rs", &format!("fn f() {{\n    // {word}: later\n}}\n"), &[2]);
        assert_findings("a/b.toml", &format!("# {word}\n"), &[1]);
        assert_findings("a/b.rs", &format!("const A{word}: u8 = 1;\n"), &[]);
    }
    for name in UNFINISHED_MACROS {
        assert_findings("a/b.rs", &format!("fn f() {{ {name}!() }}\n"), &[1]);
        assert_findings("a/b.rs", &format!("// {name}!() panics\n"), &[]);
    }
}

#[test]
fn unsafe_in_core_is_found_and_talk_of_it_is_not() {
    assert_findings("core/src/a.rs", "// SAFETY: no\nunsafe {}\nunsafe fn f() {}\n", &[2, 3]);
    assert_findings("core/src/a.rs", "#![forbid(unsafe_code)]\n/// An `unsafe` one.\n", &[]);
}

#[test]
fn unsafe_elsewhere_gives_a_reason() {
    assert_findings("os/src/a.rs", "let x = unsafe { f() };\n", &[1]);
    assert_findings("os/src/a.rs", "// SAFETY: f has no demands.\nlet x = unsafe { f() };\n", &[]);
    assert_findings("os/src/a.rs", "unsafe impl Send for A {}\n", &[1]);
    assert_findings("os/src/a.rs", "pub unsafe fn f() {}\n#[unsafe(no_mangle)]\n", &[]);
    let far = format!("// SAFETY: too far\n{}unsafe {{}}\n", "\n".repeat(SAFETY_LINES));
    assert_findings("os/src/a.rs", &far, &[SAFETY_LINES + 2]);
}

#[test]
fn modules_have_names_of_their_own() {
    assert_findings("a.rs", "mod utils;\npub(crate) mod types {\n}\nmod common_case;\n", &[1, 2]);
    assert_findings("a.rs", "mod wire; // not mod utils\n", &[]);
}
