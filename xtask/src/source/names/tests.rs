use super::*;

#[test]
fn each_path_of_a_tree_is_read_with_its_name() {
    let names = Names::of("use a::{self, b as c, d::{e, *}};\npub use f::g;");
    let imports: Vec<_> =
        names.imports.iter().map(|(name, path)| format!("{name} {}", path.join("::"))).collect();
    assert_eq!(imports, ["a a", "c a::b", "e a::d::e", "d a::d", "g f::g"]);
    assert_eq!(names.paths.len(), 4, "a public import is no use of its path");
}

#[test]
fn only_code_outside_tests_has_paths() {
    let names = Names::of(
        "// a::b\nfn f() -> c::D { x.e::<F>(\"g::h\") }\n#[cfg(test)]\nmod tests {\n    use i::j;\n}",
    );
    let paths: Vec<_> = names.paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["c::D"]);
}
