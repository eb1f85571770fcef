//! Tests faults of connections on a real device. A connection that does not recover ends with an error
//! that names the fault and leaves nothing behind, and the process goes on. A connection that recovers
//! outlives an interruption.

use anyhow::{Result, bail, ensure};

use super::{Trial, built, in_guests, is_full};
use crate::shell::Shell;

/// Gives up a silent peer after 4 s instead of half a minute. A killed peer's TCP connection closes
/// within that time, though it has taken a second on a busy machine. Without warnings of a stall the error
/// is an end's first line.
const HASTY: &str = "INVAR_RECOVERY_TIMEOUT_MS=0 INVAR_STALL_MS=0 NCCL_IB_TIMEOUT=17 \
                     NCCL_IB_RETRY_CNT=6";
/// The time in ms within which an end with work in flight must report the fault. The guest is slow.
const MS_MAX: u64 = 45_000;
/// The time in ms within which an idle end must report the fault. It learns of its peer's death by TCP
/// alone, after at most 25 s.
const IDLE_MS_MAX: u64 = 35_000;

/// A fault that happens while messages are in flight.
struct Fault {
    what: &'static str,
    /// The devices of the client and the server. Each pair is one run. Of rxe_a and rxe_b the fault
    /// hits rxe_a.
    ends: &'static [[&'static str; 2]],
    /// The shell commands that cause the fault, see `xtask/vm/fault`.
    cause: &'static str,
    undo: &'static str,
    /// Whether the client connects to the same server again over its open device afterwards.
    goes_on: bool,
    /// The client's exit status. `says` are texts that its error contains if the fault hits the
    /// client's device.
    status: u8,
    says: &'static [&'static str],
    /// The server's error contains one of these texts. `None` means that the server has no error. Every
    /// error names both ends.
    server_says: Option<&'static [&'static str]>,
    /// A text that the error contains in any case if the fault hits that end.
    notice: &'static str,
}

const BOTH_WAYS: &[[&str; 2]] = &[["rxe_a", "rxe_b"], ["rxe_b", "rxe_a"]];
const ONE_WAY: &[[&str; 2]] = &[["rxe_a", "rxe_b"]];
/// A device that can be unplugged without affecting another. Both ends are on it.
const UNPLUGGED: &[[&str; 2]] = &[["rxe_c", "rxe_c"]];
const PLUG_IN: &str = "ip link add veth2 type veth peer name veth3 && \
                       ip address add 203.0.113.1/24 dev veth2 && \
                       ip link set veth3 up && ip link set veth2 up && \
                       rdma link add rxe_c type rxe netdev veth2";

const FAULTS: [Fault; 8] = [
    Fault {
        what: "the link goes down",
        ends: BOTH_WAYS,
        cause: "ip link set veth0 down",
        undo: "ip link set veth0 up",
        goes_on: true,
        status: 3,
        says: &["look at this end first"],
        server_says: Some(&[""]),
        // The kernel takes the port's GIDs away before it marks the port down. A send may fail between the two.
        notice: "the port of rxe_a",
    },
    Fault {
        what: "no packet arrives any more",
        ends: BOTH_WAYS,
        cause: "tc qdisc add dev veth0 root netem loss 100%",
        undo: "tc qdisc del dev veth0 root",
        goes_on: true,
        status: 3,
        says: &["RETRY_EXC_ERR"],
        server_says: Some(&[""]),
        notice: "",
    },
    Fault {
        what: "the peer is killed",
        ends: ONE_WAY,
        cause: "kill -9 $server",
        undo: "true",
        goes_on: false,
        status: 3,
        says: &["the peer has closed or is dead"],
        server_says: None,
        notice: "",
    },
    Fault {
        what: "the peer of an idle end is killed",
        ends: ONE_WAY,
        cause: "kill -9 $client",
        undo: "true",
        goes_on: false,
        status: 137,
        says: &[],
        server_says: Some(&PEER_GONE),
        notice: "",
    },
    Fault {
        // A stopped client leaves the server idle, but its kernel still answers over TCP. So the server
        // notices nothing until the client's host cannot be reached.
        what: "the host of an idle end's peer vanishes",
        ends: ONE_WAY,
        cause: "kill -STOP $client; sleep 1; \
                for i in lo veth0; do tc qdisc add dev $i root netem loss 100%; done; \
                sleep 32; kill -9 $client",
        undo: "for i in lo veth0; do tc qdisc del dev $i root; done",
        goes_on: false,
        status: 137,
        says: &[],
        server_says: Some(&["the peer has closed or is dead", "is out of reach"]),
        notice: "",
    },
    Fault {
        what: "the address of the GID is removed",
        ends: BOTH_WAYS,
        cause: "ip address del 192.0.2.1/24 dev veth0",
        undo: "ip address add 192.0.2.1/24 dev veth0",
        goes_on: true,
        status: 3,
        says: &["its GID is gone"],
        server_says: Some(&[""]),
        notice: "the port of rxe_a changed its GIDs",
    },
    Fault {
        // The command waits for the processes that use the device. Those processes go on.
        what: "the device is deleted",
        ends: ONE_WAY,
        cause: "rdma link delete rxe_a & delete=$!",
        undo: "wait $delete; rdma link add rxe_a type rxe netdev veth0",
        goes_on: false,
        status: 0,
        says: &[],
        server_says: None,
        notice: "",
    },
    Fault {
        // Processes that use the device lose it at once. Its name becomes free when they have closed
        // it.
        what: "the device is unplugged",
        ends: UNPLUGGED,
        cause: "ip link delete veth2 & delete=$!",
        undo: "wait $delete; PLUG_IN",
        goes_on: false,
        status: 3,
        says: &["the device is gone"],
        server_says: Some(&[""]),
        notice: "",
    },
];

/// Interruptions of rxe_a's network that a connection outlives, as shell commands.
const INTERRUPTIONS: [(&str, &str); 2] = [
    ("the link is down for 2 s", "ip link set veth0 down; sleep 2; ip link set veth0 up"),
    (
        "no packet arrives for 5 s",
        "tc qdisc add dev veth0 root netem loss 100%; sleep 5; tc qdisc del dev veth0 root",
    ),
];

/// Prints the name of the software NIC on loopback, of the list of devices.
const NIC_ON_LOOPBACK: &str = "awk '$2 == \"soft\" && $4 == \"lo\" { print $1; exit }'";

/// Runs that fail before they begin, or print a warning. Each has a title, the shell commands, the exit
/// status of the last command, and texts that the output contains.
const REFUSALS: [(&str, &str, u8, &[&str]); 6] = [
    (
        "memory cannot be locked",
        "ulimit -l 64; export INVAR_LOG=warn; \
         capsh --drop=cap_ipc_lock -- -c 'INVAR perf --nic rxe_a -e 1M'",
        3,
        &[
            "warn: NET: this process may lock 64 KiB of memory",
            "ibv_reg_mr failed",
            "ulimit -l unlimited",
            "docker run --ulimit memlock=-1",
            "memlock limit 65536",
        ],
    ),
    (
        "memory cannot be locked by the root of another user namespace",
        "ulimit -l 64; export INVAR_LOG=warn; unshare -U -r INVAR perf --nic rxe_a -e 1M",
        3,
        &["warn: NET: this process may lock 64 KiB of memory", "memlock limit 65536"],
    ),
    (
        "little memory can be locked, and suffices",
        "ulimit -l 2048; export INVAR_LOG=warn; \
         capsh --drop=cap_ipc_lock -- -c 'INVAR perf --nic rxe_a -e 8 -n 2'",
        0,
        &["warn: NET: this process may lock 2048 KiB of memory"],
    ),
    (
        "NCCL_IB_HCA names no device",
        "NCCL_IB_HCA=mlx5_9 INVAR perf --nic rxe_a",
        2,
        &["NCCL_IB_HCA: mlx5_9 is none of", "rxe_a, rxe_b, rxe_t"],
    ),
    (
        "NCCL_IB_HCA names no port",
        "NCCL_IB_HCA=rxe_a:2 INVAR perf",
        2,
        &["NCCL_IB_HCA: rxe_a:2 is none of the RDMA devices rxe_a, rxe_b, rxe_t"],
    ),
    (
        "NCCL_IB_GID_INDEX names no GID",
        "NCCL_IB_GID_INDEX=99 INVAR perf --nic rxe_a",
        2,
        &["NCCL_IB_GID_INDEX=99", "::ffff:192.0.2.1"],
    ),
];

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    let reconnect = built(shell, "build --workspace --example", "reconnect")?;
    let mut trials = Vec::new();
    for (turn, fault) in FAULTS.iter().enumerate() {
        let Fault { what, cause, undo, goes_on, .. } = fault;
        for ends in in_turn(fault.ends, turn) {
            let [client, server] = ends;
            let undo = undo.replace("PLUG_IN", PLUG_IN);
            let prepare = if *ends == UNPLUGGED[0] { PLUG_IN } else { "true" };
            let script = format!("xtask/vm/fault {invar} {client} {server} '{cause}' '{undo}'");
            trials.push(Trial::new(
                format!("{what}, from {client}"),
                format!("{prepare}; {HASTY} {script}"),
                |output| fault.check(output, ends),
            ));
        }
        if *goes_on {
            trials.push(Trial::new(
                format!("{what}, in a client that goes on"),
                format!("{HASTY} {} rxe_a rxe_b '{cause}' '{undo}'", reconnect.display()),
                |output| fault.check_client(output),
            ));
        }
    }
    for (turn, (what, cause)) in INTERRUPTIONS.into_iter().enumerate() {
        for [client, server] in in_turn(BOTH_WAYS, turn) {
            trials.push(Trial::new(
                format!("{what}, from {client}"),
                format!("xtask/vm/flap {invar} {client} {server} '{cause}'"),
                check_interruption,
            ));
        }
    }
    let last = format!("last=$({invar} devices | {NIC_ON_LOOPBACK})");
    let [client, server] = BOTH_WAYS[0].map(|device| format!("{device}/$last"));
    trials.push(Trial::new(
        "a software NIC takes over for good",
        format!("{last}; xtask/vm/flap {invar} {client} {server} 'ip link set veth0 down'"),
        check_interruption,
    ));
    for (what, line, status, says) in REFUSALS {
        let line = line.replace("INVAR perf", &format!("{invar} perf"));
        trials.push(Trial::new(
            what,
            format!("{{ {line}; }} 2>&1; echo \"status $?\""),
            move |output| {
                let status = format!("status {status}");
                ensure!(
                    output.lines().last() == Some(&status),
                    "the output does not end with {status}"
                );
                ensure!(contains_all(output, says), "the output lacks one of {says:?}");
                Ok(())
            },
        ));
    }
    in_guests(shell, &trials)
}

/// The ends between which a fault is tried: one pair for each fault in turn, or all of them in a
/// [full](super::is_full) run.
fn in_turn(ends: &'static [[&'static str; 2]], turn: usize) -> &'static [[&'static str; 2]] {
    let at = turn % ends.len();
    if is_full() { ends } else { &ends[at..=at] }
}

/// Checks the output of `xtask/vm/flap`: both ends made new queue pairs, and no byte was wrong.
fn check_interruption(output: &str) -> Result<()> {
    let mut lines = output.lines();
    ensure!(lines.next() == Some("client 0 server 0"), "an end has failed");
    let counts = lines.next().and_then(|line| line.split_once(' '));
    ensure!(counts.is_some_and(|(a, b)| a != "0" && b != "0"), "an end made no new queue pairs");
    let row = lines.next().unwrap_or_default();
    ensure!(row.split_whitespace().last() == Some("0"), "bytes are wrong: {row}");
    Ok(())
}

impl Fault {
    /// Checks the output of `xtask/vm/fault` for one pair of devices of client and server.
    fn check(&self, output: &str, ends: &[&str; 2]) -> Result<()> {
        let mut lines = output.lines();
        let [client, server] = ends;
        let befalls = |end: &str| end != "rxe_b";
        let error = Ended::parse("client", lines.next())?;
        ensure!(error.status == Some(self.status), "the client's status is {:?}", error.status);
        ensure!(self.status == 0 || error.ms < MS_MAX, "the client takes {} ms", error.ms);
        if befalls(client) && !contains_any(error.error, &PEER_GONE) {
            error.check(self.says)?;
        }
        if self.status == 3 {
            error.check(ends)?;
            error.check(&[if befalls(client) { self.notice } else { "" }])?;
        }
        if let Some(says) = self.server_says {
            let error = Ended::parse("server", lines.next())?;
            ensure!(error.ms < IDLE_MS_MAX, "the server takes {} ms", error.ms);
            error.check(ends)?;
            ensure!(contains_any(error.error, says), "the server's error has none of {says:?}");
            let knows = befalls(server) && !error.error.contains(HUNG_UP);
            error.check(&[if knows { self.notice } else { "" }])?;
        }
        ensure!(lines.next() == Some("nothing is left"), "something is left behind");
        let again = lines.next().is_some_and(|line| line.starts_with("again 0: "));
        ensure!(again, "there is no other connection");
        Ok(())
    }

    /// Checks the output of `tests/examples/reconnect.rs`.
    fn check_client(&self, output: &str) -> Result<()> {
        let mut lines = output.lines();
        let error = lines.next().and_then(|line| line.strip_prefix("failed: ")).unwrap_or_default();
        let says = if contains_any(error, &PEER_GONE) { &[] } else { self.says };
        for says in [says, &[self.notice], &["rxe_a", "rxe_b"]] {
            ensure!(contains_all(error, says), "the error lacks one of {says:?}");
        }
        let again = lines.next().is_some_and(|line| line.starts_with("again: "));
        ensure!(again, "there is no other connection");
        ensure!(lines.next() == Some("nothing is left"), "something is left behind");
        Ok(())
    }
}

/// An end's error contains one of these texts if its peer gave up before the end noticed its own port's
/// fault.
const PEER_GONE: [&str; 2] = ["the peer has closed or is dead", HUNG_UP];
/// An idle end's error contains this text: the measurement's control connection tells it that its
/// peer gave up.
const HUNG_UP: &str = "has hung up";

/// How an end of a connection ended, parsed from `client 3 after 700 ms: ERROR` or `server after …`.
struct Ended<'a> {
    status: Option<u8>,
    ms: u64,
    error: &'a str,
}

impl<'a> Ended<'a> {
    fn parse(name: &str, line: Option<&'a str>) -> Result<Self> {
        let line = line.and_then(|line| line.strip_prefix(name)).unwrap_or_default();
        let Some((status, rest)) = line.split_once(" after ") else {
            bail!("the {name} says nothing");
        };
        let (ms, error) = rest.split_once(" ms: ").unwrap_or_default();
        Ok(Ended { status: status.trim().parse().ok(), ms: ms.parse()?, error })
    }

    fn check(&self, says: &[&str]) -> Result<()> {
        ensure!(contains_all(self.error, says), "an error lacks one of {says:?}");
        Ok(())
    }
}

fn contains_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

fn contains_all(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "client 3 after 700 ms: invar: rxe_a, rxe_b, look at this end first; the port of rxe_a went down\nserver after 900 ms: rxe_b to rxe_a\nnothing is left\nagain 0: 8\n";
    const AT_SERVER: &str = "client 3 after 700 ms: invar: rxe_b to rxe_a\nserver after 900 ms: rxe_a, rxe_b; the port of rxe_a went down\nnothing is left\nagain 0: 8\n";

    #[test]
    fn a_client_must_say_what_befell_it_and_connect_again() {
        let output = "failed: rxe_a to rxe_b: look at this end first; the port of rxe_a went down\nagain: 20 messages\nnothing is left\n";
        assert!(FAULTS[0].check_client(output).is_ok());
        for (from, to) in [
            ("rxe_b", ""),
            ("again", "not"),
            ("the port of rxe_a went down", ""),
            ("nothing", "qp"),
        ] {
            assert!(FAULTS[0].check_client(&output.replace(from, to)).is_err(), "{from} -> {to}");
        }
        assert!(FAULTS[0].check_client("").is_err());
    }

    #[test]
    fn only_the_whole_course_of_a_fault_passes() {
        let [ours, theirs] = [["rxe_a", "rxe_b"], ["rxe_b", "rxe_a"]];
        assert!(FAULTS[0].check(OUTPUT, &ours).is_ok());
        assert!(FAULTS[0].check(OUTPUT, &theirs).is_err());
        assert!(FAULTS[0].check(AT_SERVER, &theirs).is_ok());
        assert!(FAULTS[0].check(AT_SERVER, &ours).is_err());
        for (from, to) in [
            ("client 3", "client 0"),
            ("700", "99999"),
            ("900", "36000"),
            ("look at", ""),
            ("the port of rxe_a went down", ""),
            ("rxe_b", ""),
            ("server after", ""),
            ("nothing is left", "before: 1; after: 2"),
            ("again 0", "again 3"),
            ("client", ""),
        ] {
            assert!(FAULTS[0].check(&OUTPUT.replace(from, to), &ours).is_err(), "{from} -> {to}");
        }
        assert!(FAULTS[0].check("", &ours).is_err());
    }
}
