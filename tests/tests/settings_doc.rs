//! `docs/settings.md` has every setting, as the code has it.

use invar_core::param::{ParamInfo, TABLE};

/// A row of the table in the document.
fn row(info: &ParamInfo) -> String {
    let ParamInfo { name, default, allowed, meaning, differs } = info;
    let default = if default.is_empty() { "" } else { &format!("`{default}`") };
    let differs = if differs.is_empty() { "" } else { &format!(" *{differs}*") };
    format!("| `{name}` | {default} | {allowed} | {meaning}{differs} |")
}

#[test]
fn the_document_has_each_setting_with_default_range_and_meaning() {
    let document = include_str!("../../docs/settings.md");
    let rows: Vec<String> = TABLE.iter().map(row).collect();
    let ours =
        |line: &&str| TABLE.iter().any(|info| line.starts_with(&format!("| `{}` ", info.name)));
    let theirs: Vec<&str> = document.lines().filter(ours).collect();
    assert!(theirs == rows, "docs/settings.md must have these rows:\n{}\n", rows.join("\n"));
}
