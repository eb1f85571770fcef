//! The commands on the pages of the repository are commands that `invar` takes.

use std::fs;
use std::path::{Path, PathBuf};

/// The pages in the repository's root and in `docs`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    let files = |folder: PathBuf| fs::read_dir(folder).expect("a folder").flatten();
    let all = files(root.to_owned()).chain(files(root.join("docs"))).map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The lines of a page's blocks of shell commands, with their numbers.
fn shell_lines(text: &str) -> Vec<(usize, &str)> {
    let (mut in_shell, mut in_other) = (false, false);
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        match line.trim() {
            "```sh" | "```console" if !in_other => in_shell = true,
            fence if fence.starts_with("```") => {
                in_other = !in_shell && !in_other;
                in_shell = false;
            }
            _ if in_shell => lines.push((number, line)),
            _ => {}
        }
    }
    lines
}

/// The arguments of `invar` in a line, if it runs the command: behind a launcher, in `$(…)`, or by cargo.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let line = line.split(" #").next().unwrap_or_default();
    let words: Vec<&str> =
        line.split_whitespace().map(|word| word.trim_start_matches("\"$(")).collect();
    let by_cargo = words.windows(2).position(|pair| pair == ["invar-cli", "--"]).map(|at| at + 1);
    let is_first = |at: usize| {
        at == 0
            || ["eval", "srun", "mpirun", "torchrun"].contains(&words[0])
            || words[..at].iter().all(|word| word.contains('='))
    };
    let by_name = || words.iter().position(|word| *word == "invar").filter(|at| is_first(*at));
    let at = by_cargo.or_else(by_name)?;
    let arguments = words[at + 1..].iter().take_while(|word| !["|", "&&", ";", "&"].contains(word));
    Some(arguments.map(|word| word.trim_end_matches(")\"").trim_end_matches(';')).collect())
}

#[test]
fn every_command_on_a_page_is_one() {
    let mut commands = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        for (number, line) in shell_lines(&text) {
            let Some(arguments) = arguments(line) else { continue };
            let parsed = invar_cli::definition()
                .try_get_matches_from(["invar"].into_iter().chain(arguments.iter().copied()));
            if let Err(error) = parsed {
                panic!("{}:{number}: {line}\n{error}", page.display());
            }
            commands += 1;
        }
    }
    assert!(commands >= 20, "the pages have more commands than {commands}");
}

#[test]
fn commands_are_found_behind_launchers_and_in_substitutions() {
    assert_eq!(arguments("srun -N 2 invar perf   # a pair"), Some(vec!["perf"]));
    assert_eq!(arguments("eval \"$(invar env)\""), Some(vec!["env"]));
    assert_eq!(arguments("cargo run -p invar-cli -- perf"), Some(vec!["perf"]));
    assert_eq!(arguments("A=b invar coll all_reduce | head"), Some(vec!["coll", "all_reduce"]));
    assert_eq!(arguments("docker build -t invar -f x"), None);
    assert_eq!(shell_lines("a\n```sh\nb\n```\n```text\nc\n```\n"), [(3, "b")]);
}
