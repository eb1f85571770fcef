//! Programs that are not ours run on the library, and a C program that checks what they rely on.

mod libraries;
mod symbols;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use invar_testkit::child::Killed;
use invar_testkit::namespaces::Hosts;
use invar_testkit::skip::{PROGRAMS, skip};
use invar_testkit::wait::watch;
use invar_testkit::{shell, unused};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libinvar_soft_verbs.so")
}

/// A program with the library preloaded, as by `invar run`.
fn command(program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    shell::clean(&mut command).args(arguments).env("LD_PRELOAD", library());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running program.
struct Run(Killed);

impl Run {
    fn start(mut command: Command) -> Run {
        Run(Killed(command.spawn().unwrap()))
    }

    /// Waits for the end, and returns whether the program succeeded and what it printed.
    fn outcome(mut self) -> (bool, String) {
        let status = watch("the end of a program", || self.0.try_wait().unwrap());
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status.success(), text)
    }
}

/// Whether a program is installed; tells if not.
fn is_installed(program: &str, package: &str) -> bool {
    let found =
        Command::new("which").arg(program).output().is_ok_and(|output| output.status.success());
    if !found {
        skip(PROGRAMS, format!("needs {program}, which Debian's {package} has"));
    }
    found
}

/// The name of the device on loopback, which is the last one.
fn loopback() -> String {
    let (ok, text) = Run::start(command("ibv_devices", &[])).outcome();
    assert!(ok, "{text}");
    let last = text.lines().rfind(|line| line.contains("soft")).expect(&text);
    last.split_whitespace().next().unwrap().to_owned()
}

/// Whether a socket listens at a TCP port, given as hexadecimal digits.
fn listens(port: &str) -> bool {
    let at_port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local = fields.get(1).and_then(|local| local.rsplit(':').next());
        // 0A is LISTEN.
        local == Some(port) && fields.get(3) == Some(&"0A")
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    tables.iter().flatten().any(|table| table.lines().any(at_port))
}

/// Runs both ends of a program, and returns what the client and the server printed; `gid` is how
/// the program names the GID. Fails unless both succeed.
fn both_ends(program: &str, gid: &[&str], arguments: &[&str]) -> [String; 2] {
    let port = unused::address().port();
    let (number, device) = (port.to_string(), loopback());
    let common = [gid, &["-d", &device, "-p", &number], arguments].concat();
    let mut server = Run::start(command(program, &common));
    // The client does not wait for the server to listen.
    let hex = format!("{port:04X}");
    watch("the server to listen", || server.0.try_wait().unwrap().is_some() || listens(&hex));
    let client = Run::start(command(program, &[&common[..], &["localhost"]].concat()));
    let [(client_ok, client), (server_ok, server)] = [client.outcome(), server.outcome()];
    let both = format!("{program} {common:?}\nclient: {client}\nserver: {server}");
    assert!(client_ok && server_ok, "{both}");
    [client, server]
}

#[test]
fn tools_of_rdma_core_show_the_devices() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let (ok, text) = Run::start(command("ibv_devinfo", &["-v", "-d", &loopback()])).outcome();
    assert!(ok, "{text}");
    for part in ["PORT_ACTIVE (4)", "Ethernet", "RoCE v2", "max_qp_wr:\t\t\t2048"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_setting_chooses_the_devices_and_a_wrong_name_leaves_none() {
    if !is_installed("ibv_devices", "ibverbs-utils") {
        return;
    }
    let shown = |list: &str| {
        let mut devices = command("ibv_devices", &[]);
        if !list.is_empty() {
            devices.env("INVAR_SOFT_DEVICES", list);
        }
        let (ok, text) = Run::start(devices).outcome();
        assert!(ok, "{text}");
        let names = text.split_whitespace().filter(|word| word.starts_with("soft"));
        (names.map(str::to_owned).collect::<Vec<_>>(), text)
    };
    let (all, _) = shown("");
    let loopback = all.last().unwrap();
    assert_eq!(shown("lo").0, [loopback.as_str()]);
    let reversed: Vec<_> = all.iter().rev().cloned().collect();
    assert_eq!(shown(&reversed.join(",")).0, reversed);
    let (_, text) = shown("lo,nowhere0");
    let says = "INVAR_SOFT_DEVICES: nowhere0 is none of the devices soft0 (";
    assert!(text.contains(says) && text.contains(&format!("{loopback} (lo)")), "{text}");
    assert!(!text.lines().any(|line| line.trim_start().starts_with("soft")), "{text}");
}

#[test]
fn ping_pongs_of_rdma_core_run_between_two_processes() {
    if !is_installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let cases: [(&str, &[&str]); 13] = [
        // The last of two GIDs counts: IPv4 on loopback.
        ("ibv_rc_pingpong", &["-n", "200", "-g", "1", "-c", "-s", "5000"]),
        ("ibv_ud_pingpong", &["-n", "200", "-g", "1", "-e"]),
        ("ibv_rc_pingpong", &["-n", "200"]),
        // Events instead of polls.
        ("ibv_rc_pingpong", &["-n", "200", "-e"]),
        ("ibv_rc_pingpong", &["-n", "50", "-s", "100000", "-m", "4096"]),
        // Both ends check what they received.
        ("ibv_rc_pingpong", &["-n", "50", "-s", "5000", "-c"]),
        ("ibv_rc_pingpong", &["-n", "50", "-e", "-r", "3", "-s", "1"]),
        // Four queue pairs with one shared receive queue.
        ("ibv_srq_pingpong", &["-n", "200", "-q", "4"]),
        ("ibv_srq_pingpong", &["-n", "100", "-q", "3", "-e", "-s", "5000"]),
        ("ibv_ud_pingpong", &["-n", "200", "-c"]),
        ("ibv_ud_pingpong", &["-n", "200", "-e", "-s", "2048"]),
        ("ibv_uc_pingpong", &["-n", "200", "-c", "-s", "5000"]),
        ("ibv_uc_pingpong", &["-n", "100", "-e"]),
    ];
    for (program, arguments) in cases {
        for text in both_ends(program, &["-g", "0"], arguments) {
            assert!(text.contains("usec/iter"), "{program} {arguments:?}: {text}");
            assert!(!text.contains("invalid data"), "{program} {arguments:?}: {text}");
        }
    }
}

#[test]
fn tests_of_perftest_end_well_between_two_processes() {
    if !is_installed("ib_send_bw", "perftest") {
        return;
    }
    let cases: [(&str, &[&str]); 22] = [
        ("ib_send_bw", &["-n", "200", "-s", "5000"]),
        ("ib_write_bw", &["-n", "200", "-q", "4"]),
        ("ib_read_bw", &["-n", "200", "-e"]),
        ("ib_atomic_bw", &["-n", "100", "-b"]),
        ("ib_send_lat", &["-n", "100", "--inline_size", "512", "-s", "400"]),
        ("ib_write_lat", &["-n", "100", "-I", "64", "-s", "64"]),
        ("ib_send_bw", &["-n", "200", "-b", "-s", "100"]),
        ("ib_send_bw", &["-n", "200", "--use-srq", "-q", "4"]),
        ("ib_send_bw", &["-n", "200", "-c", "UD"]),
        ("ib_send_bw", &["-n", "200", "-c", "UD", "-q", "2", "-e"]),
        ("ib_send_lat", &["-n", "100", "-c", "UD", "-s", "1000"]),
        ("ib_write_bw", &["-n", "100", "-c", "UC"]),
        ("ib_send_lat", &["-n", "100", "-c", "UC"]),
        // As many receives as messages.
        ("ib_send_bw", &["-n", "5000", "-s", "100", "-c", "UC"]),
        ("ib_read_lat", &["-n", "100"]),
        ("ib_atomic_lat", &["-n", "100"]),
        // Each power of two up to 8 MiB.
        ("ib_write_bw", &["-n", "5", "-a"]),
        ("ib_read_bw", &["-n", "5", "-a"]),
        ("ib_send_bw", &["-n", "5", "-a"]),
        ("ib_write_bw", &["-n", "20", "-q", "64"]),
        ("ib_send_bw", &["-n", "200", "-e"]),
        ("ib_send_lat", &["-n", "100", "-c", "UD", "-e"]),
    ];
    for (program, arguments) in cases {
        // Half a second until a retransmission (`-u`): on a busy machine the peer may get no processor for long.
        both_ends(program, &["-x", "0", "-u", "17"], arguments);
    }
}

/// Starts a program that prints the events of a host's first device. Returns its lines after the first one.
fn watch_events(hosts: &Hosts) -> (Run, Receiver<String>) {
    // The program's lines come at once, and not when its buffer is full.
    let mut command = hosts.program(0, "env");
    command.arg(format!("LD_PRELOAD={}", library().display())).args(["stdbuf", "-oL"]);
    command.args(["ibv_asyncwatch", "-d", "soft0"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut run = Run::start(command);
    let lines = BufReader::new(run.0.stdout.take().unwrap()).lines();
    let (line, heard) = channel();
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|text| line.send(text)));
    assert!(next_line(&heard).contains("async event FD"));
    (run, heard)
}

fn next_line(heard: &Receiver<String>) -> String {
    heard.recv_timeout(Duration::from_secs(60)).expect("a line of ibv_asyncwatch")
}

/// Waits for an event of the port.
fn hear(heard: &Receiver<String>, event: &str) {
    // The kernel may give the interface its link-local address only now.
    let mut lines = iter::repeat_with(|| next_line(heard));
    let text = lines.find(|text| text.contains(event)).unwrap();
    assert!(text.contains("port 1"), "{text}");
}

#[test]
fn a_program_learns_that_its_port_goes_down_and_comes_back_and_that_addresses_change() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    if !is_installed("ibv_asyncwatch", "ibverbs-utils") {
        return;
    }
    let (_run, heard) = watch_events(&hosts);
    for (change, event) in [("down", "PORT_ERR"), ("up", "PORT_ACTIVE")] {
        hosts.ip(1, &format!("link set v0 {change}")).unwrap();
        hear(&heard, event);
    }
    for change in ["add", "del"] {
        hosts.ip(0, &format!("addr {change} 198.51.100.1/24 dev v0")).unwrap();
        hear(&heard, "GID_CHANGE");
    }
}

#[test]
fn a_program_that_has_no_descriptor_left_is_not_told_that_its_port_is_down() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    if !is_installed("ibv_asyncwatch", "ibverbs-utils") {
        return;
    }
    let (run, heard) = watch_events(&hosts);
    let (pid, id) = (Pid::from_child(&run.0), run.0.id());
    let is_free = |number: &u64| fs::symlink_metadata(format!("/proc/{id}/fd/{number}")).is_err();
    let files = getrlimit(Resource::Nofile);
    let none_left = Rlimit { current: (0..).find(is_free), ..files };
    prlimit(Some(pid), Resource::Nofile, none_left).unwrap();
    hosts.ip(0, "addr add 198.51.100.1/24 dev v0").unwrap();
    // The change wakes the library, which looks at the port.
    thread::sleep(Duration::from_millis(500));
    let told: Vec<_> = heard.try_iter().filter(|text| text.contains("PORT_")).collect();
    assert_eq!(told, [""; 0]);
    prlimit(Some(pid), Resource::Nofile, files).unwrap();
    hosts.ip(1, "link set v0 down").unwrap();
    hear(&heard, "PORT_ERR");
}

#[test]
fn a_device_keeps_its_name_while_the_cable_of_another_is_pulled() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    hosts.add_cable("v1", 1500, ["198.51.100.1", "198.51.100.2"]).unwrap();
    let states = || {
        let mut command = hosts.program(0, "env");
        command.arg(format!("LD_PRELOAD={}", library().display())).arg("ibv_devinfo");
        let Output { status, stdout, .. } = command.output().unwrap();
        assert!(status.success());
        let text = String::from_utf8(stdout).unwrap();
        let words = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            matches!(words.next(), Some("hca_id:" | "state:")).then(|| words.next())?
        });
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let (active, down) = ("PORT_ACTIVE", "PORT_DOWN");
    assert_eq!(states(), ["soft0", active, "soft1", active, "soft2", active]);
    // The other end of the cable, so that this one has no carrier.
    hosts.ip(1, "link set v0 down").unwrap();
    watch("the link to go down", || (states()[1] == down).then_some(()));
    assert_eq!(states(), ["soft0", down, "soft1", active, "soft2", active]);
    hosts.ip(0, "link set v0 down").unwrap();
    assert_eq!(states(), ["soft0", down, "soft1", active, "soft2", active]);
}

#[test]
fn programs_that_need_more_than_the_device_has_end_with_an_error() {
    let cases: [(&str, &[&str]); 2] = [
        ("ibv_xsrq_pingpong", &[]),
        // On-demand paging.
        ("ibv_rc_pingpong", &["-o"]),
    ];
    for (program, arguments) in cases {
        if !is_installed(program, "ibverbs-utils") {
            return;
        }
        let device = loopback();
        let arguments = [&["-d", &device, "-g", "0"], arguments].concat();
        let Output { status, .. } = command(program, &arguments).output().unwrap();
        // A signal would leave no code.
        assert!(status.code().is_some_and(|code| code != 0), "{program}: {status}");
    }
}

/// Runs a C program of this folder, which checks what it is promised.
fn run_c(source: &str, arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let (header, program) = (folder.path().join("header.c"), folder.path().join("program"));
    fs::write(
        &header,
        "#include <infiniband/verbs.h>\nint main(void) { return ibv_fork_init(); }\n",
    )
    .unwrap();
    let build = |source: &Path| {
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Werror", "-o"])
            .arg(&program)
            .arg(source)
            .args(["-libverbs", "-pthread"])
            .output()
    };
    if !build(&header).is_ok_and(|output| output.status.success()) {
        return skip(PROGRAMS, "needs a C compiler (cc) and Debian's libibverbs-dev");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let built = build(&source).unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let (ok, text) = Run::start(command(&program, arguments)).outcome();
    assert!(ok && text.contains("all as promised"), "{text}");
}

#[test]
fn a_c_program_gets_what_the_verbs_promise() {
    run_c("verbs.c", &[]);
}

#[test]
fn a_c_program_gets_the_events_of_objects_that_end_and_after_signals() {
    run_c("events.c", &[]);
}

#[test]
fn a_c_program_finds_the_files_and_events_that_ucx_relies_on() {
    run_c("ucx.c", &[]);
}

#[test]
fn a_c_program_that_exits_or_closes_its_device_after_its_last_completion_has_acknowledged_it() {
    run_c("exit.c", &[]);
}

/// `INVAR_TEST_VERBS_SECONDS` makes the run longer, and `INVAR_TEST_SEED` repeats one.
#[test]
fn random_calls_get_what_a_model_of_the_verbs_says() {
    let setting = |name, unset: String| std::env::var(name).unwrap_or(unset);
    let seconds = setting("INVAR_TEST_VERBS_SECONDS", "3".to_owned());
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u32;
    // A failure shows what the program printed, and so the seed.
    run_c("random.c", &[&seconds, &setting("INVAR_TEST_SEED", now.to_string())]);
}
