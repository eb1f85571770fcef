//! Two NICs, of whatever kind, that talk with each other from two processes.
//!
//! Both processes walk through the same `scenario`s in step, over a TCP connection
//! (`control`); in each, one end asks and the other answers (`exchange`). What the two see is
//! a line of text that says nothing about whose NICs they are: two kinds of NIC agree where they
//! give the same lines.

mod control;
mod exchange;
mod scenario;

use std::io::{self, Write};

use invar_core::nic::Nic;

pub use control::Control;
pub use scenario::{Fault, Scenario, Table};

/// Walks through all scenarios of a table, first with the process that listens as the one that
/// answers, then with it as the one that asks. The one that connected writes down what came out.
///
/// # Errors
/// The other process is gone, or out of step.
///
/// # Panics
/// Where a call of the NIC fails that has to succeed.
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
