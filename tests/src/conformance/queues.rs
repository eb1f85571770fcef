//! Checks the room in queues, and the order and number of completions that polls return.

use invar_core::nic::{
    Nic, QpCap, QpTransition, RecvWr, SendFlags, SendOpcode, SendWr, Verb, Wc, WcStatus,
};

use super::{Bench, Check, Verdict, ensure, equal, poll};
use crate::end::End;

pub(super) fn checks<N: Nic + Clone>() -> Vec<Check<N>> {
    vec![
        ("a send queue takes what was asked for, and refuses what it cannot hold", send_queue),
        ("a receive queue takes what was asked for, and refuses what it cannot hold", recv_queue),
        ("a completion queue holds as many as was asked for", completion_queue),
        ("polls give the oldest first, as many as there is room for", batches),
        ("a send queue drains by one completion for many requests", drains),
        ("an error flushes all that is outstanding, in order", flush),
    ]
}

/// More requests than a queue holds that was created for 64.
const POSTS_MAX: u64 = 1 << 16;

fn send_queue<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    // The peer has posted no receive, so none of these requests can complete.
    let wr = |wr_id| SendWr { wr_id, ..a.work(SendOpcode::RdmaWriteWithImm, 0, b) };
    let mut posted = 0;
    let refused = loop {
        match a.nic.post_send(&a.qp, &[wr(posted)]) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        ensure!(posted < POSTS_MAX, "a queue for 64 requests takes any number");
    };
    ensure!(posted >= 64, "a queue for 64 requests takes {posted}");
    equal("the verb that refuses", refused.verb, Verb::PostSend)?;
    ensure!(refused.errno != 0, "a full queue has no errno");
    for i in 0..posted {
        b.post_recv(i, 0);
        bench.success(b, "a receive", i)?;
        bench.success(a, "a send of a queue that was full", i)?;
    }
    b.post_recv(1, 0);
    a.post(&wr(posted));
    bench.success(a, "a send after a queue was full", posted)?;

    // The NIC posts the requests of a list that come before the refused one.
    let list: Vec<SendWr> = (0..=posted.min(200)).map(wr).collect();
    if list.len() as u64 > posted {
        let error = a.nic.post_send(&a.qp, &list).err().ok_or("a list longer than the queue")?;
        equal("the index of the refused request", u64::from(error.index), posted)?;
    }
    Ok(())
}

fn recv_queue<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    let mut posted = 0;
    let refused = loop {
        match b.nic.post_recv(&b.qp, &RecvWr { wr_id: posted, ..RecvWr::default() }) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        ensure!(posted < POSTS_MAX, "a queue for 64 receives takes any number");
    };
    ensure!(posted >= 64, "a queue for 64 receives takes {posted}");
    equal("the verb that refuses", refused.verb, Verb::PostRecv)?;
    for i in 0..posted {
        a.post(&SendWr { wr_id: i, ..a.work(SendOpcode::RdmaWriteWithImm, 0, b) });
        bench.success(a, "a send", i)?;
        bench.success(b, "a receive of a queue that was full", i)?;
    }
    b.post_recv(7, 0);
    Ok(())
}

fn completion_queue<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = bench.nics();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_inline_data: 0 };
    let pd = a.alloc_pd().map_err(|error| error.to_string())?;
    let narrow = End::with(a, pd, &cap, 32, 64);
    let peer = End::new(b, 64);
    let link = bench.link()?;
    narrow.connect(&peer, &link);
    peer.connect(&narrow, &link);
    for round in 0..3 {
        for i in 0..32 {
            narrow.post(&SendWr { wr_id: i, ..narrow.work(SendOpcode::RdmaWrite, 8, &peer) });
        }
        // Wait long enough for all completions. No poll takes any of them meanwhile.
        bench.pass(super::QUIET_NS);
        for i in 0..32 {
            bench.success(&narrow, &format!("completion {i} of round {round}"), i)?;
        }
    }
    Ok(())
}

fn batches<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    let mut next = 0;
    let mut posted = 0;
    for room in [1, 2, 3, 5, 8, 13, 64] {
        let wrs: Vec<SendWr> = (posted..posted + 20)
            .map(|wr_id| SendWr { wr_id, ..a.work(SendOpcode::RdmaWrite, 8, b) })
            .collect();
        a.nic.post_send(&a.qp, &wrs).map_err(|error| error.to_string())?;
        posted += 20;
        while next < posted {
            let mut wcs = vec![Wc::default(); room];
            let n = bench.await_some("a completion", || {
                let n = poll(a, &mut wcs)?;
                Ok((n > 0).then_some(n))
            })?;
            for wc in &wcs[..n] {
                equal("the next completion", (wc.wr_id, wc.status), (next, WcStatus::SUCCESS))?;
                next += 1;
            }
        }
        equal("completions in a poll without room", poll(a, &mut [])?, 0)?;
    }
    bench.quiet(a, "all completions are taken")
}

fn drains<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    let wr = a.work(SendOpcode::RdmaWrite, 8, b);
    for _ in 0..40 {
        let mut wrs = [SendWr { flags: SendFlags::empty(), ..wr }; 32];
        wrs[31] = wr;
        a.nic.post_send(&a.qp, &wrs).map_err(|error| error.to_string())?;
        bench.success(a, "the last of 32", wr.wr_id)?;
    }
    Ok(())
}

fn flush<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    let wr = a.work(SendOpcode::SendWithImm, 8, b);
    for wr_id in 0..10 {
        let signaled = if wr_id % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        a.post(&SendWr { wr_id, flags: signaled, ..wr });
        a.post_recv(100 + wr_id, 8);
    }
    bench.quiet(a, "sends that the peer has no receives for")?;
    a.nic.modify_qp(&a.qp, &QpTransition::Err).map_err(|error| error.to_string())?;
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let wc = bench.completion(a, "a flushed request")?;
        equal("status of a flushed request", wc.status, WcStatus::WR_FLUSH_ERR)?;
        if wc.wr_id < 100 { &mut sends } else { &mut receives }.push(wc.wr_id);
    }
    equal("flushed sends, those without a signal too", sends, (0..10).collect())?;
    equal("flushed receives", receives, (100..110).collect())?;
    bench.quiet(a, "after everything was flushed")
}
