//! The commands on the pages of the repository are commands that `invar` takes, in blocks and within lines. Blocks with
//! the fence `sh,run` are run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::error::ErrorKind;
use invar_testkit::shell::clean;

/// Ends a block that hangs. Beside ten programs that compute, on two processors, the longest takes over 60 s.
const BLOCK_SECONDS_MAX: &str = "300";

/// The pages in the repository's root and in `docs`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    let files = |folder: PathBuf| fs::read_dir(folder).expect("a folder").flatten();
    let all = files(root.to_owned()).chain(files(root.join("docs"))).map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// A block of shell commands.
struct ShellBlock<'a> {
    /// The number of the line with the fence.
    number: usize,
    /// Whether the block is marked as one that runs on any machine.
    is_run: bool,
    lines: Vec<&'a str>,
}

fn shell_blocks(text: &str) -> Vec<ShellBlock<'_>> {
    let (mut in_shell, mut in_other) = (false, false);
    let mut blocks: Vec<ShellBlock<'_>> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        match line.trim() {
            fence @ ("```sh" | "```sh,run" | "```console") if !in_other => {
                in_shell = true;
                blocks.push(ShellBlock {
                    number,
                    is_run: fence.ends_with(",run"),
                    lines: Vec::new(),
                });
            }
            fence if fence.starts_with("```") => {
                in_other = !in_shell && !in_other;
                in_shell = false;
            }
            _ if in_shell => blocks.last_mut().expect("its fence").lines.push(line),
            _ => {}
        }
    }
    blocks
}

/// The arguments of `invar` in a line, if it runs the command: behind a launcher, in `$(…)`, or by cargo.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let line = line.split(" #").next().unwrap_or_default();
    let words: Vec<&str> =
        line.split_whitespace().map(|word| word.trim_start_matches("\"$(")).collect();
    let by_cargo = words.windows(2).position(|pair| pair == ["invar-cli", "--"]).map(|at| at + 1);
    let is_first = |at: usize| {
        at == 0
            || ["eval", "mpirun", "srun", "sudo", "torchrun"].contains(&words[0])
            || words[..at].iter().all(|word| word.contains('='))
    };
    // In `Cargo.toml` the name stands before an equals sign.
    let is_command = |at: &usize| is_first(*at) && words.get(at + 1) != Some(&"=");
    let by_name = || words.iter().position(|word| *word == "invar").filter(is_command);
    let at = by_cargo.or_else(by_name)?;
    let arguments = words[at + 1..].iter().take_while(|word| !["|", "&&", ";", "&"].contains(word));
    Some(arguments.map(|word| word.trim_end_matches(")\"").trim_end_matches(';')).collect())
}

#[test]
fn every_command_on_a_page_is_one() {
    let mut commands = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        let blocks = shell_blocks(&text);
        let lines = blocks.iter().flat_map(|block| (block.number + 1..).zip(&block.lines));
        for (number, line) in lines {
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

/// The code within the lines of a page, with the number of each line.
fn spans<'a>(text: &'a str) -> Vec<(usize, &'a str)> {
    let mut is_code = false;
    let is_text = |(_, line): &(usize, &str)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    };
    let lines = (1..).zip(text.lines()).filter(is_text);
    let code = |(number, line): (usize, &'a str)| {
        line.split('`').skip(1).step_by(2).map(move |span| (number, span))
    };
    lines.flat_map(code).collect()
}

/// Text may name a flag without its value, or a command by its first words.
#[test]
fn every_command_within_a_line_has_only_flags_that_there_are() {
    let mut commands = 0;
    // What changed long ago may be gone.
    let of_now = pages().into_iter().filter(|page| !page.ends_with("CHANGELOG.md"));
    for page in of_now {
        let text = fs::read_to_string(&page).expect("text");
        for (number, span) in spans(&text) {
            let Some(arguments) = arguments(span) else { continue };
            let parsed = invar_cli::definition()
                .try_get_matches_from(["invar"].into_iter().chain(arguments.iter().copied()));
            let kind = parsed.err().map(|error| error.kind());
            let is_unknown =
                matches!(kind, Some(ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand));
            assert!(!is_unknown, "{}:{number}: `{span}`: {kind:?}", page.display());
            commands += 1;
        }
    }
    assert!(commands >= 60, "the pages name more commands than {commands}");
}

#[test]
fn every_block_that_is_marked_to_run_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let command = Path::new(env!("CARGO_BIN_EXE_invar"));
    let path = std::env::var("PATH").expect("a PATH");
    let path = format!("{}:{path}", command.parent().expect("a folder").display());
    let (mut runs, mut failed) = (0, Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        for block in shell_blocks(&text).into_iter().filter(|block| block.is_run) {
            let mut bash = Command::new("timeout");
            bash.args([BLOCK_SECONDS_MAX, "bash", "-ec"]).arg(block.lines.join("\n"));
            bash.current_dir(&folder).env("PATH", &path).stdin(Stdio::null());
            let output = clean(&mut bash).output().expect("bash");
            let [stdout, stderr] =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            let place = format!("{}:{}", page.display(), block.number);
            runs += 1;
            if !output.status.success() {
                failed.push(format!("{place}: {}\n{stdout}{stderr}", output.status));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.concat());
    assert!(runs >= 4, "{runs} blocks are marked");
}

#[test]
fn commands_are_found_behind_launchers_and_in_substitutions() {
    assert_eq!(arguments("srun -N 2 invar perf   # a pair"), Some(vec!["perf"]));
    assert_eq!(arguments("eval \"$(invar env)\""), Some(vec!["env"]));
    assert_eq!(arguments("cargo run -p invar-cli -- perf"), Some(vec!["perf"]));
    assert_eq!(arguments("A=b invar coll all_reduce | head"), Some(vec!["coll", "all_reduce"]));
    assert_eq!(arguments("sudo invar perf --chaos"), Some(vec!["perf", "--chaos"]));
    assert_eq!(arguments("docker build -t invar -f x"), None);
    assert_eq!(arguments("invar = { path = \"x\" }"), None);
}

#[test]
fn code_within_lines_is_found_outside_of_blocks() {
    let page = "`a` and `b c`\n```sh\n`d`\n```\n| `e` |\n";
    assert_eq!(spans(page), [(1, "a"), (1, "b c"), (5, "e")]);
}

#[test]
fn blocks_of_other_languages_are_no_commands() {
    let page = "a\n```sh\nb\n```\n```text\nx\n```\n```sh,run\nc\n```\n";
    let blocks = shell_blocks(page);
    let found = blocks.iter().map(|block| (block.number, block.is_run, &block.lines[..]));
    assert!(found.eq([(2, false, &["b"][..]), (8, true, &["c"])]));
}
