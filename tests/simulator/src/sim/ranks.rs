//! Ranks that run collectives over a simulated network, all in one thread. The histories include the
//! death of a rank and the reaction of the others.
//!
//! A rank is the same code as in a communicator: the schedules of [`invar_core::coll`], which
//! [`Plan`](invar::communicator::Plan)s run over links on comms of the simulated NIC. Only the news
//! that ranks hear of each other (`news.rs`) is a model of the rendezvous.

mod history;
mod news;
mod rank;
mod work;

use super::{Event, Fault, Outcome, SimNic, State as MachineState, World};
use crate::duo;

pub(super) use history::run;
