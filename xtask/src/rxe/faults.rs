//! What befalls connections on a real device: each ends with an error that says so, leaves nothing
//! behind, and the process goes on.

use anyhow::{Result, bail, ensure};

use super::{built, guest};
use crate::shell::Shell;

/// A peer that does not answer is given up after 4 s instead of half a minute: long enough for a
/// killed one's TCP to be closed first, which on a busy machine has taken a second.
const HASTY: &str = "NCCL_IB_TIMEOUT=17 NCCL_IB_RETRY_CNT=6";
/// In which time a client has to end, the guest being slow: one that has nothing under way learns by
/// TCP alone that nobody answers, which takes 25 s.
const MS_MAX: u64 = 45_000;

/// Something that happens while messages go.
struct Fault {
    what: &'static str,
    /// Shell commands, see `xtask/vm/fault`.
    cause: &'static str,
    undo: &'static str,
    /// Whether the process whose device it befalls has to go on with another connection: a server
    /// with another client, and a client with the same server.
    goes_on: bool,
    /// The client's exit status, and what its error says at least; nothing if it does not fail.
    status: u8,
    says: &'static [&'static str],
}

const FAULTS: [Fault; 5] = [
    Fault {
        what: "the link goes down",
        cause: "ip link set veth0 down",
        undo: "ip link set veth0 up",
        goes_on: true,
        status: 3,
        says: &["rxe_a", "rxe_b", "look at this end first"],
    },
    Fault {
        what: "no packet arrives any more",
        cause: "tc qdisc add dev veth0 root netem loss 100%",
        undo: "tc qdisc del dev veth0 root",
        goes_on: true,
        status: 3,
        says: &["rxe_a", "rxe_b", "RETRY_EXC_ERR"],
    },
    Fault {
        what: "the peer is killed",
        cause: "kill -9 $server",
        undo: "true",
        goes_on: false,
        status: 3,
        says: &["rxe_a", "rxe_b", "the peer has closed or is dead"],
    },
    Fault {
        what: "the address of the GID is removed",
        cause: "ip address del 192.0.2.1/24 dev veth0",
        undo: "ip address add 192.0.2.1/24 dev veth0",
        goes_on: true,
        status: 3,
        says: &["rxe_a", "rxe_b", "its GID is gone"],
    },
    Fault {
        // rxe waits for the processes that use it, which can go on.
        what: "the device is deleted",
        cause: "rdma link delete rxe_a & delete=$!",
        undo: "wait $delete; rdma link add rxe_a type rxe netdev veth0",
        goes_on: false,
        status: 0,
        says: &[],
    },
];

/// A run that is refused before it begins: what is wrong, the command after `invar perf`'s
/// environment, and what the error says.
const REFUSALS: [(&str, &str, &[&str]); 3] = [
    (
        "memory cannot be locked",
        "ulimit -l 64; capsh --drop=cap_ipc_lock -- -c 'INVAR perf --nic rxe_a -e 1M'",
        &["ibv_reg_mr", "ulimit -l unlimited", "memlock limit 65536"],
    ),
    (
        "NCCL_IB_HCA names no device",
        "NCCL_IB_HCA=mlx5_9 INVAR perf --nic rxe_a",
        &["NCCL_IB_HCA", "rxe_a, rxe_b, rxe_t"],
    ),
    (
        "NCCL_IB_GID_INDEX names no GID",
        "NCCL_IB_GID_INDEX=99 INVAR perf --nic rxe_a",
        &["NCCL_IB_GID_INDEX=99", "::ffff:192.0.2.1"],
    ),
];

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    let reconnect = built(shell, "build -p invar-testkit --example", "reconnect")?;
    let reconnect = reconnect.display();
    for fault in &FAULTS {
        let Fault { what, cause, undo, goes_on, .. } = fault;
        // All of them befall rxe_a; of client and server, the latter stays and goes on.
        let roles = [["rxe_a", "rxe_b"], ["rxe_b", "rxe_a"]];
        for [client, server] in roles.into_iter().take(1 + usize::from(*goes_on)) {
            let nics = format!("{client} {server}");
            let line = format!("{HASTY} xtask/vm/fault {invar} {nics} '{cause}' '{undo}'");
            let output = guest(shell, None, &line)?;
            if let Err(why) = fault.check(&output, client == "rxe_a") {
                bail!("where {what}, from {client}: {why}; the guest said:\n{output}");
            }
        }
        if *goes_on {
            let line = format!("{HASTY} {reconnect} rxe_a rxe_b '{cause}' '{undo}'");
            let output = guest(shell, None, &line)?;
            if let Err(why) = fault.check_client(&output) {
                bail!("where {what}, in a client that goes on: {why}; the guest said:\n{output}");
            }
        }
    }
    for (what, line, says) in REFUSALS {
        let line = format!("{} 2>&1; true", line.replace("INVAR", invar));
        let output = guest(shell, None, &line)?;
        ensure!(
            contains_all(&output, says),
            "where {what}: the error lacks one of {says:?}: {output}"
        );
    }
    Ok(())
}

impl Fault {
    /// `is_ours`: it befell the client's device, so that the client's error has to say what it is.
    fn check(&self, output: &str, is_ours: bool) -> Result<()> {
        let mut lines = output.lines();
        let Some((client, error)) = lines.next().and_then(|line| line.split_once(" ms: ")) else {
            bail!("there is no client");
        };
        let (status, ms) = client
            .strip_prefix("client ")
            .and_then(|rest| rest.split_once(" after "))
            .and_then(|(status, ms)| Some((status.parse::<u8>().ok()?, ms.parse::<u64>().ok()?)))
            .unwrap_or((u8::MAX, u64::MAX));
        ensure!(status == self.status, "the client's status is {status}, not {}", self.status);
        ensure!(status == 0 || ms < MS_MAX, "the client takes {ms} ms to notice");
        let says = if is_ours { self.says } else { &[] };
        ensure!(contains_all(error, says), "the error lacks one of {says:?}");
        ensure!(lines.next() == Some("nothing is left"), "something is left behind");
        let again = lines.next().is_some_and(|line| line.starts_with("again 0: "));
        ensure!(again, "there is no other connection");
        Ok(())
    }

    /// What `tests/examples/reconnect.rs` prints.
    fn check_client(&self, output: &str) -> Result<()> {
        let mut lines = output.lines();
        let error = lines.next().and_then(|line| line.strip_prefix("failed: ")).unwrap_or_default();
        ensure!(contains_all(error, self.says), "the error lacks one of {:?}", self.says);
        let again = lines.next().is_some_and(|line| line.starts_with("again: "));
        ensure!(again, "there is no other connection");
        Ok(())
    }
}

fn contains_all(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "client 3 after 700 ms: invar: rxe_a, rxe_b, look at this end first\nnothing is left\nagain 0: 8\n";

    #[test]
    fn a_client_must_say_what_befell_it_and_connect_again() {
        let output = "failed: rxe_a to rxe_b: look at this end first\nagain: 20 messages\n";
        assert!(FAULTS[0].check_client(output).is_ok());
        assert!(FAULTS[0].check_client(&output.replace("rxe_b", "")).is_err());
        assert!(FAULTS[0].check_client(&output.replace("again", "not")).is_err());
        assert!(FAULTS[0].check_client("").is_err());
    }

    #[test]
    fn only_the_whole_course_of_a_fault_passes() {
        assert!(FAULTS[0].check(OUTPUT, true).is_ok());
        assert!(FAULTS[0].check(&OUTPUT.replace("look at", ""), true).is_err());
        assert!(FAULTS[0].check(&OUTPUT.replace("look at", ""), false).is_ok());
        for (from, to) in [
            ("client 3", "client 0"),
            ("700", "99999"),
            ("rxe_b", ""),
            ("nothing is left", "before: 1; after: 2"),
            ("again 0", "again 3"),
            ("client", ""),
        ] {
            assert!(FAULTS[0].check(&OUTPUT.replace(from, to), true).is_err(), "{from} -> {to}");
        }
        assert!(FAULTS[0].check("", true).is_err());
    }
}
