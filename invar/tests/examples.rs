//! The examples, run as a reader runs them, over loopback.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fs};

use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::pattern::pattern;
use invar_testkit::shell;
use tempfile::TempDir;

/// Both need no hardware: the software NIC, and TCP.
const TRANSPORTS: [&str; 2] = ["soft", "socket"];

/// An example, which cargo has built beside the tests.
fn example(name: &str, transport: &str) -> Command {
    let program = env::current_exe().expect("this program");
    let target = program.parent().and_then(|deps| deps.parent()).expect("a target folder");
    let program = target.join("examples").join(name);
    let path = program.display();
    assert!(
        program.exists(),
        "no {path}: `cargo test -p invar` builds it, `--test` alone does not"
    );
    let mut command = Command::new(program);
    shell::clean(&mut command).env("INVAR_TRANSPORT", transport).env("NCCL_SOCKET_IFNAME", "lo");
    command
}

/// Runs an example that must end well, and returns the text that it prints.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// A file, and the place of its copy.
struct Files {
    _folder: TempDir,
    file: PathBuf,
    copy: PathBuf,
}

impl Files {
    fn new(len: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, copy) = (folder.path().join("file"), folder.path().join("copy"));
        let content = pattern(0, len);
        fs::write(&file, content).expect("a file");
        Files { _folder: folder, file, copy }
    }

    fn are_equal(&self) -> bool {
        fs::read(&self.file).expect("a file") == fs::read(&self.copy).expect("a copy")
    }
}

#[test]
fn send_file_copies_a_file_between_two_threads() {
    for transport in TRANSPORTS {
        for len in [0, 1, 3 << 20, (1 << 20) + 17] {
            let files = Files::new(len);
            let mut command = example("send_file", transport);
            let text = output(command.args([&files.file, &files.copy]));
            assert!(text.contains(&format!("received {len} bytes, checksum ")), "{text}");
            assert!(files.are_equal(), "{transport}, {len} bytes");
        }
    }
}

#[test]
fn send_file_copies_a_file_between_two_processes() {
    for transport in TRANSPORTS {
        let files = Files::new(2_500_000);
        let mut receiver = example("send_file", transport);
        receiver.arg("--receive").arg(&files.copy).stdout(Stdio::piped());
        let mut receiver = receiver.spawn().expect("a receiver");
        let mut lines = BufReader::new(receiver.stdout.take().expect("a pipe")).lines();
        let handle = lines.next().expect("a handle").expect("text");
        let mut sender = example("send_file", transport);
        let sent = output(sender.arg("--send").arg(&files.file).arg(handle));
        let received = lines.next().expect("a line").expect("text");
        assert!(receiver.wait().expect("an end").success());
        assert_eq!(sent.trim_end().strip_prefix("sent"), received.strip_prefix("received"));
        assert!(files.are_equal(), "{transport}");
    }
}

#[test]
fn many_connections_serves_256_with_one_thread() {
    let text = output(&mut example("many_connections", "soft"));
    assert!(text.starts_with("one thread served 256 connections: 5120 messages in "), "{text}");
    // Over TCP 256 would need more descriptors than a process may have by default.
    let text = output(example("many_connections", "socket").arg("64"));
    assert!(text.starts_with("one thread served 64 connections: 1280 messages in "), "{text}");
}

#[test]
fn tokio_connections_serves_a_thousand_tasks() {
    let text = output(&mut example("tokio_connections", "soft"));
    assert!(text.starts_with("1000 connections carried 10000 messages in "), "{text}");
    let text = output(example("tokio_connections", "socket").arg("64"));
    assert!(text.starts_with("64 connections carried 640 messages in "), "{text}");
}

#[test]
fn file_server_gives_each_client_its_file() {
    for transport in TRANSPORTS {
        let all = [1, 2_500_000].map(Files::new);
        let mut command = example("file_server", transport);
        let text = output(command.args(all.iter().map(|files| &files.file)));
        for (files, len) in all.iter().zip([1, 2_500_000]) {
            let line = format!("{}: {len} bytes, checksum ", files.file.display());
            assert!(text.contains(&line), "{text}");
        }
    }
}

#[test]
fn cancel_drops_waits_and_loses_no_message() {
    for transport in TRANSPORTS {
        let text = output(&mut example("cancel", transport));
        assert_eq!(text, "5 messages with the sum 15, and the clock ticked: true\n");
    }
}

#[test]
fn all_reduce_sums_over_processes_that_share_memory_or_a_network() {
    let check = |command: &mut Command, transport: &str| {
        let text = output(command.arg("3"));
        assert!(text.ends_with("all 3 ranks have the sum\n"), "{text}");
        for rank in 0..3 {
            let line = format!("rank {rank} of 3: 1048576 elements over {transport}");
            assert!(text.contains(&line), "{text}");
        }
    };
    check(&mut example("all_reduce", "auto"), "shared memory in ");
    for transport in TRANSPORTS {
        let mut command = example("all_reduce", transport);
        check(command.env("NCCL_SHM_DISABLE", "1"), &format!("{transport} ("));
    }
}

#[test]
fn gpu_memory_is_staged_where_the_nic_is_software() {
    for transport in TRANSPORTS {
        let mut command = example("gpu_memory", transport);
        let _installed = FakeCuda::new().give_to(&mut command);
        let text = output(&mut command);
        assert!(text.contains("\nway: "), "{text}");
        assert!(text.contains("received 3145728 bytes into GPU memory, all as sent"), "{text}");
    }
}

#[test]
fn gpu_memory_says_where_there_is_no_gpu() {
    let mut command = example("gpu_memory", "soft");
    let _installed = FakeCuda::new().set("FAKE_CUDA_FAIL", "cuInit=100").give_to(&mut command);
    let text = output(&mut command);
    assert!(text.starts_with("no GPU memory to send: ") && text.contains("cuInit"), "{text}");
}
