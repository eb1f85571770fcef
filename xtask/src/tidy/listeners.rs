//! Checks the places where the product lets others call it.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use super::file::Finding;
use crate::source::{after_word, code_only};

/// The words that create a TCP listener. Only the listener that demands a proof from its callers may
/// use them.
const TCP_LISTENER: [&str; 6] = [
    "TcpListener",
    "Type::STREAM",
    "SocketType::STREAM",
    "SOCK_STREAM",
    "libc::listen",
    "net::listen",
];

/// The files of that listener: its socket, and what it does with callers. The third file creates a
/// socket only to ask the kernel for its congestion controls.
const AUTH_LISTENER: [&str; 3] =
    ["os-linux/src/tcp.rs", "os-linux/src/tcp/callers.rs", "os-linux/src/tcp/congestion.rs"];

/// The file of the listener of metrics, which tells its callers only numbers. It takes loopback addresses
/// only.
const METRICS_LISTENER: &str = "os-linux/src/scrape.rs";

/// The words that open a door: a socket to which others can send.
const DOOR: [&str; 7] = [
    "AuthListener::bind",
    "AuthListener::with_handle",
    "UnixListener",
    "RxSocket::bind",
    "TxSocket::bind",
    "UdpSocket",
    "TcpListener::bind",
];

/// Every file of the product with a door, and the tests that send strangers there, as files and
/// functions. A Unix socket lets in only processes of its own user.
const DOORS: [(&str, &[(&str, &str)]); 11] = [
    (
        "invar/src/raw/adapter/attempt.rs",
        &[
            ("tests/tests/strangers.rs", "a_listener_for_the_software_nic_keeps_strangers_off"),
            ("tests/tests/strangers.rs", "a_link_between_ranks_keeps_strangers_off"),
            (
                "nccl-plugin/tests/plugin/strangers.rs",
                "a_listening_comm_on_the_software_nic_keeps_strangers_off",
            ),
        ],
    ),
    (
        "os-linux/src/socket/connect.rs",
        &[
            ("tests/tests/strangers.rs", "a_listener_for_tcp_keeps_strangers_off"),
            (
                "nccl-plugin/tests/plugin/strangers.rs",
                "a_listening_comm_over_tcp_keeps_strangers_off",
            ),
        ],
    ),
    (
        "os-linux/src/tcp/renewal.rs",
        &[("tests/tests/strangers.rs", "a_door_for_lost_connections_keeps_strangers_off")],
    ),
    (
        "os-linux/src/rendezvous/hub.rs",
        &[
            ("tests/tests/strangers.rs", "a_rendezvous_keeps_strangers_off"),
            (
                "nccl-plugin/tests/plugin/strangers.rs",
                "a_listening_comm_of_collnet_keeps_strangers_off",
            ),
        ],
    ),
    (
        "cli/src/perf/server.rs",
        &[("cli/tests/command/strangers.rs", "a_server_of_perf_keeps_strangers_off")],
    ),
    (
        METRICS_LISTENER,
        &[("cli/tests/command/metrics.rs", "a_listener_of_metrics_keeps_strangers_off")],
    ),
    ("os-linux/src/unix.rs", PROXY),
    ("os-linux/src/proxy/service.rs", PROXY),
    (
        "os-linux/src/shm/share.rs",
        &[(
            "os-linux/src/shm/share.rs",
            "those_who_know_the_address_get_the_memory_and_others_do_not",
        )],
    ),
    ("os-linux/src/soft/nic.rs", UDP),
    ("os-linux/src/soft/sockets.rs", UDP),
];

const PROXY: &[(&str, &str)] = &[(
    "tests/tests/proxy_host/service.rs",
    "a_peer_that_sends_no_requests_is_sent_away_and_others_go_on",
)];
const UDP: &[(&str, &str)] = &[
    ("tests/tests/soft_garbage.rs", "a_flood_of_noise_and_forged_packets_harms_no_transfer"),
    (
        "tests/tests/soft_device/strangers.rs",
        "a_packet_from_another_port_than_the_peer_has_named_is_no_packet_of_the_peers",
    ),
];

/// Checks the table of doors against the files.
pub(super) fn check_doors(root: &Path) -> Vec<String> {
    let mut findings = Vec::new();
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    for (file, tests) in DOORS {
        if doors(&read(file)).next().is_none() {
            findings.push(format!("{file}: there is no door, though DOORS has one"));
        }
        for (test, function) in tests.iter().filter(|(test, f)| !has_function(&read(test), f)) {
            findings.push(format!("{test}: no {function}, which sends strangers to {file}"));
        }
    }
    findings
}

fn has_function(text: &str, name: &str) -> bool {
    text.contains(&format!("fn {name}("))
}

/// The lines of a file that open doors, each with the word that opens it.
fn doors(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let lines = product_code(text).into_iter();
    lines.filter_map(|(number, line)| {
        let door = DOOR.into_iter().find(|door| after_word(&line, door).is_some());
        door.map(|door| (number, door))
    })
}

/// Checks the listeners of a file. `path` is relative to the repository's root.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !is_product(path) || AUTH_LISTENER.iter().any(|file| path == Path::new(file)) {
        return findings;
    }
    let words = TCP_LISTENER.iter().chain(&["OobListener"]);
    // A Unix socket has no callers from other hosts.
    let is_unix = |line: &str| after_word(line, "AddressFamily::UNIX").is_some();
    let is_of_metrics = path == Path::new(METRICS_LISTENER);
    let lines = product_code(text).into_iter().filter(|(_, line)| !is_unix(line));
    for (number, line) in lines.filter(|_| !is_of_metrics) {
        for word in words.clone().filter(|word| after_word(&line, word).is_some()) {
            let message = format!("{word}: strangers are kept off by AuthListener alone; use that");
            findings.push((number, message));
        }
    }
    let is_known = DOORS.iter().any(|(file, _)| path == Path::new(file));
    for (number, door) in doors(text).filter(|_| !is_known) {
        // A listener that is refused needs no test of its door.
        if findings.iter().any(|(line, _)| *line == number) {
            continue;
        }
        let message = format!("{door}: no test sends strangers there; add it to DOORS with one");
        findings.push((number, message));
    }
    findings
}

/// Whether the file belongs to the code that users run, and not to its tests.
fn is_product(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let is_source = matches!(
        (parts.next(), parts.next()),
        (
            Some(
                "core"
                    | "os-linux"
                    | "verbs-adapter"
                    | "cuda-adapter"
                    | "invar"
                    | "cli"
                    | "nccl-plugin"
                    | "python"
            ),
            Some("src")
        )
    );
    is_source && !path.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// The lines of code of a file up to its tests, which come last.
fn product_code(text: &str) -> Vec<(usize, String)> {
    let code = code_only(text);
    let lines = (1..).zip(code.lines().map(str::to_owned));
    lines.take_while(|(_, line)| !line.starts_with("mod tests {")).collect()
}
