//! Runs the protocol itself and compares every answer with a model.

use invar_core::conn::{CommSettings, Wire};
use invar_core::nic::{Nic, QpOptions};
use invar_core::roce::UDP_PORT;

use super::{Bench, Check, STEP_NS, TIMEOUT_NS, Verdict};
use crate::duo;
use crate::model::comm::{Op, Shape, Traffic};

pub(super) fn checks<N: Nic + Clone>() -> Vec<Check<N>> {
    vec![
        ("comms deliver every message once, in order, whole", |bench| {
            run(bench, CommSettings::default(), 300)
        }),
        ("comms over four queue pairs", |bench| {
            run(
                bench,
                CommSettings { qps: 4, ar_threshold_bytes: 512, ..CommSettings::default() },
                300,
            )
        }),
        ("comms with slots posted inline", |bench| {
            run(bench, CommSettings { use_inline: true, ..CommSettings::default() }, 200)
        }),
        ("comms with a FIFO of few rows", |bench| {
            run(bench, CommSettings { fifo_depth: 2, ..CommSettings::default() }, 200)
        }),
        ("comms on the wire of NCCL 2.14", nccl_wire),
        ("comms in adaptive-routing mode, where both ports have it", |bench| {
            let options = QpOptions::all();
            run(bench, CommSettings { options, qps: 2, ..CommSettings::default() }, 200)
        }),
    ]
}

/// Runs on NCCL's wire, unless a port is a software NIC on a UDP port other than RoCE's. NCCL's wire
/// cannot tell the peer that port.
fn nccl_wire<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    for nic in bench.nics() {
        let port = nic.query_port().map_err(|error| error.to_string())?;
        if ![0, UDP_PORT].contains(&port.udp_port) {
            return Ok(());
        }
    }
    run(bench, CommSettings { wire: Wire::Nccl214, ..CommSettings::default() }, 200)
}

fn run<N: Nic + Clone>(bench: &mut Bench<N>, settings: CommSettings, ops: usize) -> Verdict {
    let settings = [settings; 2];
    let [a, b] = bench.nics().map(N::clone);
    let duo = duo::connect([&a, &b], settings, || {
        bench.pass(STEP_NS);
    })
    .map_err(|error| format!("connecting: {error}"))?;
    let shape = Shape { message_bytes_max: 20_000, cells: 64, prompt: false };
    let mut traffic = Traffic::new([&a, &b], settings, duo, shape);
    let failed = |error| format!("a comm failed: {error}");
    // Any fixed sequence will do. This multiplier gives the full period.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..ops {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        traffic.apply(Op::decode((random ^ random >> 33).to_le_bytes())).map_err(failed)?;
        bench.pass(STEP_NS / 4);
    }
    for _ in 0..TIMEOUT_NS / STEP_NS {
        if traffic.finish(0).map_err(failed)? {
            return Ok(());
        }
        bench.pass(STEP_NS);
    }
    Err("requests are under way still".to_string())
}
