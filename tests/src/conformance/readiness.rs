//! Checks peers that are not ready, or do not exist.

use invar_core::nic::{Nic, QpTransition, RtsAttr, SendOpcode, SendWr, WcStatus};

use super::{Bench, Check, STEP_NS, Verdict, ensure, equal};
use crate::end::{End, Link};
use crate::pattern::pattern;

pub(super) fn checks<N: Nic + Clone>() -> Vec<Check<N>> {
    vec![
        ("with rnr_retry 7 a send waits for a receive for ever", waits),
        ("with less it fails with RNR_RETRY_EXC_ERR", gives_up),
        ("a peer that is gone is RETRY_EXC_ERR", gone),
        ("a peer in error is RETRY_EXC_ERR", in_error),
        ("nothing lands at a queue pair in error after its last flush", nothing_lands),
        ("a SEND longer than its receive is an error at both ends", too_long),
    ]
}

const WITH_RECEIVE: [SendOpcode; 3] =
    [SendOpcode::RdmaWriteWithImm, SendOpcode::Send, SendOpcode::SendWithImm];

fn waits<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for opcode in WITH_RECEIVE {
        let [a, b] = &bench.pair(64)?;
        let first = SendWr { wr_id: 1, ..a.work(opcode, 8, b) };
        a.post(&first);
        a.post(&SendWr { wr_id: 2, ..a.work(SendOpcode::RdmaWrite, 8, b) });
        bench.quiet(a, "a send without a receive, and what is behind it")?;
        b.post_recv(9, 8);
        bench.success(b, "the receive", 9)?;
        bench.success(a, "the send that had to wait", 1)?;
        bench.success(a, "the one behind it", 2)?;
    }
    Ok(())
}

fn gives_up<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for rnr_retry in [0, 1, 6] {
        let rts = RtsAttr { rnr_retry, ..Link::default().rts };
        let link = Link { rts, ..bench.link()? };
        let [a, b] = &End::pair(bench.nics(), 64, &link);
        let wr = a.work(SendOpcode::SendWithImm, 8, b);
        a.post(&wr);
        let what = format!("a send without a receive, {rnr_retry} retries");
        bench.failure(a, &what, wr.wr_id, &[WcStatus::RNR_RETRY_EXC_ERR])?;
    }
    Ok(())
}

fn gone<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for opcode in [SendOpcode::RdmaWrite, SendOpcode::RdmaRead, SendOpcode::Send] {
        let [a, b] = bench.hasty_pair(64)?;
        let wr = a.work(opcode, 8, &b);
        drop(b.qp);
        a.post(&wr);
        bench.failure(&a, &format!("{opcode:?}"), wr.wr_id, &[WcStatus::RETRY_EXC_ERR])?;
    }
    Ok(())
}

fn in_error<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.hasty_pair(64)?;
    b.nic.modify_qp(&b.qp, &QpTransition::Err).map_err(|error| error.to_string())?;
    let wr = a.work(SendOpcode::RdmaWrite, 8, b);
    a.post(&wr);
    bench.failure(a, "a write to a queue pair in ERR", wr.wr_id, &[WcStatus::RETRY_EXC_ERR])
}

fn nothing_lands<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    const WRITES: usize = 16;
    const PART: usize = 16 << 10;
    const LEN: usize = WRITES * PART;
    let (sent, blank) = (pattern(1, LEN), vec![0; LEN]);
    for steps in 0..8 {
        let [a, b] = &bench.hasty_pair(LEN)?;
        a.buffer.write(0, &sent);
        for offset in (0..WRITES).map(|part| part * PART) {
            let whole = a.work(SendOpcode::RdmaWrite, PART, b);
            let remote_addr = whole.remote_addr + offset as u64;
            a.post(&SendWr { remote_addr, sge: a.sge(offset, PART), ..whole });
        }
        bench.pass(steps * STEP_NS);
        let stop = || b.nic.modify_qp(&b.qp, &QpTransition::Err).map_err(|error| error.to_string());
        stop()?;
        b.post(&SendWr { wr_id: 1, ..b.work(SendOpcode::RdmaWrite, 8, a) });
        b.post_recv(2, 8);
        // Some drivers look for new receives of a stopped queue pair only while it changes its state.
        stop()?;
        for _ in 0..2 {
            let wc = bench.completion(b, "the flush of a last request")?;
            equal("the status of a last request", wc.status, WcStatus::WR_FLUSH_ERR)?;
        }
        b.buffer.write(0, &blank);
        for _ in 0..WRITES {
            bench.completion(a, "a write under way to a queue pair in ERR")?;
        }
        bench.quiet(b, "a queue pair after its last flush")?;
        ensure!(b.buffer.read(0, LEN) == blank, "a write landed after the last flush");
    }
    Ok(())
}

fn too_long<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for (len, room) in [(1, 0), (8, 7), (4000, 3999)] {
        let [a, b] = &bench.hasty_pair(4096)?;
        b.post_recv(3, room);
        let wr = a.work(SendOpcode::Send, len, b);
        a.post(&wr);
        // Devices differ in the error that they report and in the NAK that they send.
        let either = [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR];
        bench.failure(b, "the receive", 3, &either)?;
        let either = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR];
        bench.failure(a, "the send", wr.wr_id, &either)?;
    }
    Ok(())
}
