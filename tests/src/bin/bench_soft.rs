//! Measures two software NICs over loopback: `bench_soft CONNECTIONS BYTES MESSAGES DROP_PPM ADAPTIVE`.
//!
//! The program writes `MESSAGES` messages of `BYTES` bytes to a peer that just polls for packets. The
//! connections take turns. The program prints the seconds that this takes. In each direction `DROP_PPM` of a
//! million packets are lost. `ADAPTIVE` is 1 for adaptive routing, else 0.

use std::collections::VecDeque;
use std::error::Error;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use invar_core::nic::{Nic, QpCap, QpOptions, SendOpcode, SendWr, WcStatus};
use invar_linux::soft::{ImpairmentConfig, SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};

/// The bytes in flight. In any case at least one message and at most [`MESSAGES_MAX`] are in flight.
const WINDOW_BYTES: u64 = 8 << 20;
const MESSAGES_MAX: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<u64> =
        std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    let &[connections, bytes, messages, drop_ppm, adaptive] = args.as_slice() else {
        return Err("usage: bench_soft CONNECTIONS BYTES MESSAGES DROP_PPM ADAPTIVE".into());
    };
    let nics = [open(drop_ppm as u32, 1)?, open(drop_ppm as u32, 2)?];
    let mut options = QpOptions::ICRC_MASKS_IP_ID;
    options.set(QpOptions::ADAPTIVE_ROUTING, adaptive == 1);
    let pairs = connect(&nics, connections, bytes as usize, options);
    let works: Vec<SendWr> = pairs
        .iter()
        .map(|[from, to]| from.work(SendOpcode::RdmaWrite, bytes as usize, to))
        .collect();

    let done = AtomicBool::new(false);
    let seconds = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                nics[1].progress();
            }
        });
        let window = (WINDOW_BYTES / bytes.max(1)).clamp(1, MESSAGES_MAX) as usize;
        let transfer = |messages| {
            let start = Instant::now();
            let mut under_way = VecDeque::with_capacity(window);
            for i in (0..pairs.len()).cycle().take(messages) {
                if under_way.len() == window
                    && let Some(oldest) = under_way.pop_front()
                {
                    wait(oldest);
                }
                let [from, _] = &pairs[i];
                from.post(&works[i]);
                under_way.push_back(from);
            }
            under_way.into_iter().for_each(wait);
            start.elapsed().as_secs_f64()
        };
        transfer((messages / 10 + 1) as usize);
        let seconds = transfer(messages as usize);
        done.store(true, Ordering::Relaxed);
        seconds
    });
    writeln!(std::io::stdout(), "{seconds}")?;
    Ok(())
}

fn wait(end: &End<SoftNic>) {
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
}

fn open(drop_ppm: u32, seed: u64) -> std::io::Result<SoftNic> {
    let mut config = SoftConfig::new("soft", ([0, 0, 0, 0, 0, 0, 0, 1], 0).into());
    let impairment = ImpairmentConfig { drop_ppm, seed, ..ImpairmentConfig::default() };
    config.impairment = (drop_ppm > 0).then_some(impairment);
    SoftNic::open(&config)
}

fn connect(
    nics: &[SoftNic; 2],
    connections: u64,
    bytes: usize,
    options: QpOptions,
) -> Vec<[End<SoftNic>; 2]> {
    let cap = QpCap { max_send_wr: MESSAGES_MAX as u32, max_recv_wr: 1, max_inline_data: 0 };
    let link = Link { options, ..Link::default() };
    let end = |nic: &SoftNic| {
        End::with(nic, nic.alloc_pd().expect("domain"), &cap, MESSAGES_MAX as usize, bytes)
    };
    let pair = |_| {
        let ends = [end(&nics[0]), end(&nics[1])];
        ends[0].connect(&ends[1], &link);
        ends[1].connect(&ends[0], &link);
        ends
    };
    (0..connections).map(pair).collect()
}
