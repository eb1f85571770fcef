//! Checks keys, bounds and rights: a NIC refuses wrong requests with the status that the verbs specify.

use invar_core::nic::{
    Access, MemoryKeys, Nic, QpCap, SendFlags, SendOpcode, SendWr, Sge, WcStatus,
};

use super::{Bench, Check, Verdict, ensure};
use crate::end::End;
use crate::pattern::pattern;

pub(super) fn checks<N: Nic + Clone>() -> Vec<Check<N>> {
    vec![
        ("a wrong remote key or range is REM_ACCESS_ERR, and nothing is written", remote),
        ("a wrong local key or range is LOC_PROT_ERR, and nothing is sent", local),
        ("rights that a region does not give are refused", rights),
        ("rights that a queue pair does not give are refused", queue_pair_rights),
        ("regions of another protection domain are refused", domains),
        ("a region that is deregistered is refused", deregistered),
        ("a request of no bytes needs no keys", no_bytes),
        ("an error ends the queue pair, and flushes what follows", what_follows),
    ]
}

const LEN: usize = 1024;
const REMOTE: [SendOpcode; 3] =
    [SendOpcode::RdmaWrite, SendOpcode::RdmaWriteWithImm, SendOpcode::RdmaRead];

/// The status for a wrong key or range of the peer.
const OF_THE_PEER: &[WcStatus] = &[WcStatus::REM_ACCESS_ERR];
/// The status for a wrong key or range of this end. Linux's rxe reports the second one for a send.
const OF_OURS: &[WcStatus] = &[WcStatus::LOC_PROT_ERR, WcStatus::LOC_QP_OP_ERR];

/// Posts a request on a new connection that must fail with `status`. Checks that no byte of either
/// end's memory has changed.
fn refused<N: Nic + Clone>(
    bench: &mut Bench<N>,
    what: &str,
    opcode: SendOpcode,
    status: &[WcStatus],
    change: impl FnOnce(SendWr) -> SendWr,
) -> Verdict {
    let ends = bench.hasty_pair(LEN)?;
    refused_between(bench, &ends, what, opcode, status, change)
}

fn refused_between<N: Nic + Clone>(
    bench: &mut Bench<N>,
    [a, b]: &[End<N>; 2],
    what: &str,
    opcode: SendOpcode,
    status: &[WcStatus],
    change: impl FnOnce(SendWr) -> SendWr,
) -> Verdict {
    let what = format!("{opcode:?} with {what}");
    let (here, there) = (pattern(1, LEN), pattern(2, LEN));
    a.buffer.write(0, &here);
    b.buffer.write(0, &there);
    b.post_recv(3, LEN);
    let wr = change(a.work(opcode, LEN, b));
    a.post(&wr);
    bench.failure(a, &what, wr.wr_id, status)?;
    ensure!(a.buffer.read(0, LEN) == here, "{what}: the requester's memory changed");
    ensure!(b.buffer.read(0, LEN) == there, "{what}: the responder's memory changed");
    Ok(())
}

fn remote<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let status = OF_THE_PEER;
    for opcode in REMOTE {
        let check = |bench: &mut Bench<N>, what: &str, change: fn(SendWr) -> SendWr| {
            refused(bench, what, opcode, status, change)
        };
        check(bench, "a key of nobody", |wr| SendWr { rkey: wr.rkey ^ 0x5555_5500, ..wr })?;
        check(bench, "a key off by one bit", |wr| SendWr { rkey: wr.rkey ^ 1, ..wr })?;
        check(bench, "a key of 0", |wr| SendWr { rkey: 0, ..wr })?;
        let past = |wr: SendWr| SendWr { remote_addr: wr.remote_addr + 1, ..wr };
        check(bench, "one byte behind the range", past)?;
        let before = |wr: SendWr| SendWr { remote_addr: wr.remote_addr - 1, ..wr };
        check(bench, "one byte before the range", before)?;
        check(bench, "an address near the end of all", |wr| SendWr {
            remote_addr: u64::MAX - 3,
            ..wr
        })?;
    }
    Ok(())
}

fn local<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let status = OF_OURS;
    for opcode in [
        SendOpcode::RdmaWrite,
        SendOpcode::RdmaWriteWithImm,
        SendOpcode::Send,
        SendOpcode::RdmaRead,
    ] {
        let check = |bench: &mut Bench<N>, what: &str, change: fn(Sge) -> Sge| {
            refused(bench, what, opcode, status, |wr| SendWr { sge: change(wr.sge), ..wr })
        };
        check(bench, "a local key of nobody", |sge| Sge { lkey: sge.lkey ^ 0x5555_5500, ..sge })?;
        check(bench, "a local key of 0", |sge| Sge { lkey: 0, ..sge })?;
        check(bench, "one local byte behind the range", |sge| Sge { addr: sge.addr + 1, ..sge })?;
        check(bench, "one local byte before the range", |sge| Sge { addr: sge.addr - 1, ..sge })?;
    }
    Ok(())
}

fn rights<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let (write, read, local) = (Access::REMOTE_WRITE, Access::REMOTE_READ, Access::LOCAL_WRITE);
    for (opcode, access) in [
        (SendOpcode::RdmaWrite, local | read),
        (SendOpcode::RdmaWriteWithImm, local | read),
        (SendOpcode::RdmaRead, local | write),
        (SendOpcode::RdmaRead, local),
        (SendOpcode::RdmaWrite, local),
    ] {
        let ends = bench.hasty_pair(LEN)?;
        let (mr, _, rkey) = ends[1].register(&ends[1].buffer.memory, access);
        let what = format!("a region of {access:?}");
        let status = OF_THE_PEER;
        refused_between(bench, &ends, &what, opcode, status, |wr| SendWr { rkey, ..wr })?;
        drop(mr);
    }
    let ends = bench.hasty_pair(LEN)?;
    let (mr, ..) = ends[0].register(&ends[0].buffer.memory, read);
    let (status, opcode) = (OF_OURS, SendOpcode::RdmaRead);
    refused_between(bench, &ends, "a local region that may not be written", opcode, status, |wr| {
        SendWr { sge: Sge { lkey: mr.lkey(), ..wr.sge }, ..wr }
    })
}

fn queue_pair_rights<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    use invar_core::nic::QpTransition::{Init, Reset};
    let link = bench.link()?;
    for (opcode, access) in
        [(SendOpcode::RdmaWrite, Access::REMOTE_READ), (SendOpcode::RdmaRead, Access::REMOTE_WRITE)]
    {
        let ends = bench.nics().map(|nic| End::new(nic, LEN));
        let target = &ends[1];
        for to in [Reset, Init { pkey_index: 0, port_num: 1, access }] {
            target.nic.modify_qp(&target.qp, &to).map_err(|error| error.to_string())?;
        }
        ends[0].connect(target, &link);
        target.connect(&ends[0], &link);
        let what = format!("a queue pair that permits {access:?}");
        // Real devices answer with either status. In the second the operation as such is invalid there.
        let wr = ends[0].work(opcode, LEN, target);
        target.buffer.write(0, &pattern(2, LEN));
        ends[0].post(&wr);
        let either = [WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR];
        bench.failure(&ends[0], &what, wr.wr_id, &either)?;
        ensure!(target.buffer.read(0, LEN) == pattern(2, LEN), "{what}: memory changed");
    }
    Ok(())
}

fn domains<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for opcode in REMOTE {
        let ends = bench.hasty_pair(LEN)?;
        let stranger = End::new(&ends[1].nic, 64);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (mr, _, rkey) = stranger.register(&ends[1].buffer.memory, access);
        let status = OF_THE_PEER;
        let what = "a remote region of another domain";
        refused_between(bench, &ends, what, opcode, status, |wr| SendWr { rkey, ..wr })?;
        drop(mr);

        let ends = bench.hasty_pair(LEN)?;
        let stranger = End::new(&ends[0].nic, 64);
        let (mr, ..) = stranger.register(&ends[0].buffer.memory, access);
        let status = OF_OURS;
        let what = "a local region of another domain";
        refused_between(bench, &ends, what, opcode, status, |wr| SendWr {
            sge: Sge { lkey: mr.lkey(), ..wr.sge },
            ..wr
        })?;
    }
    Ok(())
}

fn deregistered<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for opcode in REMOTE {
        let ends = bench.hasty_pair(LEN)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let [a, b] = &ends;
        let (mr, _, rkey) = b.register(&b.buffer.memory, access);
        let write = SendWr { rkey, ..a.work(SendOpcode::RdmaWrite, LEN, b) };
        a.post(&write);
        bench.success(a, "a write to the region before that", write.wr_id)?;
        drop(mr);
        // The old key must not reach the region that is registered next.
        let (_next, ..) = ends[1].register(&ends[1].buffer.memory, access);
        let status = OF_THE_PEER;
        let what = "a region that is deregistered";
        refused_between(bench, &ends, what, opcode, status, |wr| SendWr { rkey, ..wr })?;
    }
    Ok(())
}

fn no_bytes<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    for opcode in [SendOpcode::RdmaWrite, SendOpcode::RdmaWriteWithImm, SendOpcode::Send] {
        if opcode != SendOpcode::RdmaWrite {
            b.post_recv(6, 0);
        }
        let wr = SendWr { remote_addr: 0, rkey: 0, sge: Sge::default(), ..a.work(opcode, 0, b) };
        a.post(&wr);
        bench.success(a, &format!("{opcode:?} of no bytes"), wr.wr_id)?;
        if opcode != SendOpcode::RdmaWrite {
            bench.success(b, &format!("{opcode:?} of no bytes, received"), 6)?;
        }
    }
    Ok(())
}

fn what_follows<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = bench.nics();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_inline_data: 0 };
    let pd = a.alloc_pd().map_err(|error| error.to_string())?;
    let ends = [End::with(a, pd, &cap, 128, LEN), End::new(b, LEN)];
    let link = bench.link()?;
    ends[0].connect(&ends[1], &link);
    ends[1].connect(&ends[0], &link);
    let [a, b] = &ends;
    a.post_recv(50, 8);
    let good = a.work(SendOpcode::RdmaWrite, 8, b);
    let list = [
        SendWr { wr_id: 1, ..good },
        SendWr { wr_id: 2, rkey: 0, flags: SendFlags::empty(), ..good },
        SendWr { wr_id: 3, flags: SendFlags::empty(), ..good },
        SendWr { wr_id: 4, ..good },
    ];
    a.nic.post_send(&a.qp, &list).map_err(|error| error.to_string())?;
    bench.success(a, "the request before the wrong one", 1)?;
    bench.failure(a, "the wrong request, unsignaled", 2, &[WcStatus::REM_ACCESS_ERR])?;
    let mut flushed = Vec::new();
    for _ in 0..3 {
        let wc = bench.completion(a, "a flushed request")?;
        ensure!(wc.status == WcStatus::WR_FLUSH_ERR, "after an error: {wc:?}");
        flushed.push(wc.wr_id);
    }
    flushed.sort_unstable();
    ensure!(flushed == [3, 4, 50], "flushed after an error: {flushed:?}");
    a.post(&SendWr { wr_id: 5, ..good });
    bench.failure(a, "a request after an error", 5, &[WcStatus::WR_FLUSH_ERR])
}
