//! Two NICs of any kind communicate between two processes.
//!
//! Both processes walk through the same `scenario`s in step, over a TCP connection (`control`). In each
//! scenario one end asks and the other answers (`exchange`). The two ends record what they see as a
//! line of text, which does not depend on the kind of NIC. Two kinds of NIC agree if their lines are
//! equal.

mod control;
mod exchange;
mod scenario;

use std::io::{self, Write};

use invar_core::nic::Nic;

pub use control::Control;
pub use scenario::{Fault, Scenario, Table};

/// Walks through all scenarios of a table twice. First the listening process answers, then it asks. The
/// process that connected writes the lines to `output`.
///
/// # Errors
/// Returns an error if the other process is gone or out of step.
///
/// # Panics
/// Panics if a NIC call fails that has to succeed.
pub fn run<N: Nic + Clone>(
    nic: &N,
    control: &mut Control,
    table: Table,
    mut output: impl Write,
) -> io::Result<()> {
    for asks in [control.has_connected(), !control.has_connected()] {
        for scenario in table.scenarios() {
            let seen = exchange::run(nic, control, &scenario, asks)?;
            if control.has_connected() {
                let way = if asks { "here" } else { "there" };
                writeln!(output, "{way}: {scenario}: {seen}")?;
            }
        }
    }
    Ok(())
}
