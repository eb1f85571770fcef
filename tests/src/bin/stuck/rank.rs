//! A rank of a communicator, which works well until the fault begins.

use std::path::Path;
use std::process::ExitCode;

use invar::{Communicator, Error, RedOp, Settings, UniqueId};

use crate::family::{begin, go_on, is_begun, log_to_stderr, park, read_when_there};

pub(crate) const RANKS: u32 = 4;
/// The rank at fault. It is neither the first nor the last one.
pub(crate) const CULPRIT: u32 = 2;
const COUNT: usize = 100_000;
const OPERATIONS: usize = 20;

pub(crate) fn run(dir: &Path, rank: &str, fault: &str) -> ExitCode {
    log_to_stderr();
    let rank = rank.parse().expect("a rank");
    if let Err(error) = work(dir, rank, fault) {
        eprintln!("error: {error}");
    }
    park()
}

fn work(dir: &Path, rank: u32, fault: &str) -> Result<(), Error> {
    let settings = Settings::from_env().expect("valid settings");
    let id = read_when_there(&dir.join("id"));
    let id = UniqueId::from_bytes(id.as_slice().try_into().expect("an id"))?;
    let communicator = Communicator::join(&id, rank, RANKS, &settings)?;
    let mut data = vec![1.0_f32; COUNT];
    for operation in 0.. {
        if operation == OPERATIONS {
            begin(dir, &rank.to_string());
        }
        // All ranks agree on the operation at which the fault begins.
        let mut has_begun = [u8::from(is_begun(dir))];
        communicator.all_reduce_in_place(&mut has_begun, RedOp::Min)?;
        match (fault, rank) {
            _ if has_begun == [0] => {}
            ("not entered" | "send without recv", CULPRIT) => park(),
            ("endless loop", CULPRIT) => loop {
                std::hint::spin_loop();
            },
            ("other root", CULPRIT) => communicator.broadcast(&mut data, 1)?,
            ("other root", _) => communicator.broadcast(&mut data, CULPRIT)?,
            ("other count", CULPRIT) => {
                communicator.all_reduce_in_place(&mut data[..COUNT / 2], RedOp::Sum)?;
            }
            ("other order", CULPRIT) => communicator.broadcast(&mut data, 1)?,
            ("other order", _) => {
                communicator.all_reduce_in_place(&mut data, RedOp::Avg)?;
                communicator.broadcast(&mut data, 1)?;
            }
            ("send without recv", 1) => communicator.send(&data, CULPRIT)?,
            _ => {}
        }
        communicator.all_reduce_in_place(&mut data, RedOp::Avg)?;
        go_on(dir, &rank.to_string());
    }
    Ok(())
}
