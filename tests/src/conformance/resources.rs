//! Checks that a resource ends with its handle and can be created again.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use invar_core::nic::{Access, Memory, MemoryKeys, Nic, PortState, SendOpcode};

use super::{Bench, Check, Verdict, ensure, equal};
use crate::end::End;

pub(super) fn checks<N: Nic + Clone>() -> Vec<Check<N>> {
    vec![
        ("the port says what the protocol needs to know", port),
        ("memory is zeroed, page-aligned and as long as was asked for", memory),
        ("numbers and keys of what lives are different and within their bits", names),
        ("resources can be had again and again", reuse),
        ("a registration keeps its memory", keeps_memory),
    ]
}

fn port<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for nic in bench.nics() {
        ensure!(!nic.name().is_empty(), "the NIC has no name");
        let port = nic.query_port().map_err(|error| error.to_string())?;
        equal("state of the port", port.state, PortState::Active)?;
        ensure!(port.port_num >= 1, "ports are counted from 1");
        ensure!(port.speed_mbps > 0, "the port has no speed");
        let by_gid = port.link_layer == invar_core::nic::LinkLayer::Ethernet;
        ensure!(!by_gid || !port.gid.ip().is_unspecified(), "an Ethernet port without a GID");
    }
    Ok(())
}

fn memory<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    use std::sync::atomic::Ordering;
    for len in [8, 4096, 10_000, 1 << 20] {
        let memory = bench.nics()[0].alloc(len).map_err(|error| error.to_string())?;
        equal("length", memory.len(), len)?;
        ensure!(memory.addr() != 0 && memory.addr() % 4096 == 0, "address {:#x}", memory.addr());
        equal("words", memory.words().len(), len / 8)?;
        let zero = memory.words().iter().all(|word| word.load(Ordering::Relaxed) == 0);
        ensure!(zero, "{len} bytes are not zero");
    }
    Ok(())
}

fn names<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let nic = bench.nics()[0];
    let ends: Vec<End<N>> = (0..64).map(|_| End::new(nic, 64)).collect();
    let (mut qpns, mut keys) = (HashSet::new(), HashSet::new());
    for end in &ends {
        let qpn = nic.qp_num(&end.qp);
        ensure!((2..1 << 24).contains(&qpn), "queue pair number {qpn:#x}");
        ensure!(qpns.insert(qpn), "queue pair number {qpn:#x} twice");
        ensure!(end.buffer.rkey() != 0, "a remote key of 0 means none");
        ensure!(keys.insert(end.buffer.rkey()), "remote key {:#x} twice", end.buffer.rkey());
    }
    Ok(())
}

/// The rounds of [`reuse`]. A device may take a second to end a queue pair with work under way. It is done with
/// fewer rounds once [`REUSE_TIME`] is over.
const REUSES: RangeInclusive<u64> = 50..=200;
const REUSE_TIME: Duration = Duration::from_secs(10);

fn reuse<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let start = Instant::now();
    for round in 0..*REUSES.end() {
        if round >= *REUSES.start() && start.elapsed() > REUSE_TIME {
            break;
        }
        let [a, b] = &bench.pair(64)?;
        b.post_recv(round, 64);
        let wr = a.work(SendOpcode::RdmaWriteWithImm, 64, b);
        a.post(&wr);
        bench.success(a, &format!("a write in round {round}"), wr.wr_id)?;
        bench.success(b, &format!("a receive in round {round}"), round)?;
        // A request in flight when its queue pair ends must not reach the next queue pair.
        a.post(&a.work(SendOpcode::RdmaWrite, 64, b));
    }
    Ok(())
}

fn keeps_memory<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    let memory = b.nic.alloc(64).map_err(|error| error.to_string())?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = b.nic.reg_mr(&b.pd, &memory, access).map_err(|error| error.to_string())?;
    let addr = memory.addr();
    drop(memory);
    let wr = a.work(SendOpcode::RdmaWrite, 64, b);
    a.post(&invar_core::nic::SendWr { remote_addr: addr, rkey: mr.rkey(), ..wr });
    bench.success(a, "a write to memory that only its registration holds", wr.wr_id)?;
    Ok(())
}
