//! Checks the state machine of queue pairs (IBTA §10.3.1).

use invar_core::nic::{
    Access, Nic, NicError, QpTransition, RecvWr, RtrAttr, RtsAttr, SendOpcode, SendWr, Verb,
    WcFlags, WcStatus,
};

use super::{Bench, Check, Verdict, ensure, equal};
use crate::end::End;

pub(super) fn checks<N: Nic + Clone>() -> Vec<Check<N>> {
    vec![
        ("a queue pair makes only the moves that exist", moves),
        ("nothing is posted before its state", too_early),
        ("a queue pair in ERR flushes what is posted", flushes),
        ("a queue pair that was reset connects again", reset),
        ("a drained send queue goes on when it is resumed", resumes),
    ]
}

const INIT: QpTransition =
    QpTransition::Init { pkey_index: 0, port_num: 1, access: Access::REMOTE_WRITE };

fn rts() -> QpTransition {
    QpTransition::Rts(RtsAttr { timeout: 14, retry_cnt: 7, rnr_retry: 7, ..RtsAttr::default() })
}

fn moves<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [end, peer] = &bench.pair(64)?;
    let nic = &end.nic;
    let port = peer.nic.query_port().map_err(|error| error.to_string())?;
    let mut rtr = RtrAttr { dest_qp_num: nic.qp_num(&peer.qp), ..RtrAttr::default() };
    rtr.ah.is_global = true;
    rtr.ah.dgid = port.gid;
    rtr.ah.sgid_index = nic.query_port().map_err(|error| error.to_string())?.gid_index;
    rtr.ah.port_num = 1;
    rtr.ah.udp_port = port.udp_port;
    rtr.max_dest_rd_atomic = 1;
    let rtr = QpTransition::Rtr(rtr);
    let (sqd, resume) = (QpTransition::Sqd, QpTransition::Resume);

    // For each state: the transitions from RESET to it, and the transitions that it refuses.
    let ways: [(&str, &[QpTransition], &[QpTransition]); 6] = [
        ("RESET", &[], &[rtr, rts(), sqd, resume]),
        ("INIT", &[INIT], &[rts(), sqd, resume]),
        ("RTR", &[INIT, rtr], &[INIT, rtr, sqd, resume]),
        ("RTS", &[INIT, rtr, rts()], &[INIT, rtr]),
        ("SQD", &[INIT, rtr, rts(), sqd], &[INIT, rtr]),
        ("ERR", &[INIT, QpTransition::Err], &[INIT, rtr, rts(), sqd, resume]),
    ];
    for (state, way, refused) in ways {
        for step in refused {
            leave_sqd(bench, end, QpTransition::Reset)?;
            for to in way {
                nic.modify_qp(&end.qp, to).map_err(|error| format!("{to:?}: {error}"))?;
            }
            let answer = nic.modify_qp(&end.qp, step);
            let verb = answer.map_err(|error| error.verb);
            equal(&format!("in {state}: {step:?}"), verb, Err(Verb::ModifyQp))?;
        }
    }
    Ok(())
}

fn too_early<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = bench.nics();
    let [end, peer] = [End::new(a, 64), End::new(b, 64)];
    let send = end.work(SendOpcode::RdmaWrite, 8, &peer);
    let refused = |what: &str, answer: Result<(), NicError>, verb| {
        equal(what, answer.map_err(|error| error.verb), Err(verb))
    };
    let post = |end: &End<N>| end.nic.post_send(&end.qp, &[send]);
    refused("a send in INIT", post(&end), Verb::PostSend)?;
    end.post_recv(1, 8);
    end.nic.modify_qp(&end.qp, &QpTransition::Reset).map_err(|error| error.to_string())?;
    refused("a send in RESET", post(&end), Verb::PostSend)?;
    let receive = RecvWr { wr_id: 2, ..RecvWr::default() };
    refused("a receive in RESET", end.nic.post_recv(&end.qp, &receive), Verb::PostRecv)?;
    bench.quiet(&end, "what was posted before a reset")
}

fn flushes<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [end, peer] = &bench.pair(64)?;
    end.nic.modify_qp(&end.qp, &QpTransition::Err).map_err(|error| error.to_string())?;
    for wr_id in 0..3 {
        let unsignaled = SendWr { wr_id, ..end.work(SendOpcode::RdmaWrite, 8, peer) };
        end.post(&unsignaled);
        bench.failure(end, "a send in ERR", wr_id, &[WcStatus::WR_FLUSH_ERR])?;
        end.post_recv(wr_id, 8);
        bench.failure(end, "a receive in ERR", wr_id, &[WcStatus::WR_FLUSH_ERR])?;
    }
    Ok(())
}

fn reset<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let ends = bench.pair(64)?;
    let link = bench.link()?;
    for round in 0..3 {
        for end in &ends {
            // The transition to RESET drops posted requests without a completion.
            end.post_recv(100, 8);
        }
        for end in &ends {
            end.nic.modify_qp(&end.qp, &QpTransition::Reset).map_err(|error| error.to_string())?;
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let init = QpTransition::Init { pkey_index: 0, port_num: 1, access };
            end.nic.modify_qp(&end.qp, &init).map_err(|error| error.to_string())?;
        }
        let [a, b] = &ends;
        a.connect(b, &link);
        b.connect(a, &link);
        b.post_recv(round, 64);
        let send = a.work(SendOpcode::SendWithImm, 64, b);
        a.post(&send);
        bench.success(a, "a send after a reset", send.wr_id)?;
        let wc = bench.success(b, "a receive after a reset", round)?;
        ensure!(
            wc.flags.contains(WcFlags::WITH_IMM) && wc.byte_len == 64,
            "a receive after a reset: {wc:?}"
        );
    }
    Ok(())
}

fn resumes<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [end, peer] = &bench.pair(64)?;
    let modify = |to| end.nic.modify_qp(&end.qp, &to).map_err(|error| error.to_string());
    modify(QpTransition::Sqd)?;
    let write = end.work(SendOpcode::RdmaWrite, 8, peer);
    end.post(&write);
    bench.quiet(end, "a send posted in SQD")?;
    leave_sqd(bench, end, QpTransition::Resume)?;
    bench.success(end, "a send posted in SQD, once resumed", write.wr_id)?;
    Ok(())
}

/// Leaves SQD by the transition `to`, and retries while the NIC refuses it. A queue pair may have to
/// drain first: the kernel's rxe lets one that still drains go to ERR alone.
fn leave_sqd<N: Nic + Clone>(bench: &mut Bench<N>, end: &End<N>, to: QpTransition) -> Verdict {
    let mut last = Ok(());
    let moved = bench.await_some("the move", || {
        last = end.nic.modify_qp(&end.qp, &to);
        Ok(last.is_ok().then_some(()))
    });
    moved.map_err(|late| format!("{to:?}: {late}: {last:?}"))
}
