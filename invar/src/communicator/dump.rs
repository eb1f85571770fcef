//! Prints a rank's state for people who look for a hang.

use std::fmt::{self, Display};
use std::io;
use std::sync::{Arc, OnceLock};

use invar_linux::proxy::DumpOnSignal;

use super::net::LinkDump;
use crate::{Error, Settings};

/// The state of one rank. Its display is one line, followed by the operations in progress over the
/// network.
pub(super) struct Dump {
    rank: u32,
    nranks: u32,
    /// The routes to the other ranks, set once the rank has joined.
    routes: OnceLock<Routes>,
}

/// The routes by which a rank reaches the other ranks.
pub(super) struct Routes {
    /// The ranks that this rank reaches through shared memory.
    pub(super) local: Vec<u32>,
    /// The links to all other ranks, over the network.
    pub(super) net: Option<LinkDump>,
}

impl Dump {
    pub(super) fn new(rank: u32, nranks: u32) -> Arc<Self> {
        Arc::new(Dump { rank, nranks, routes: OnceLock::new() })
    }

    pub(super) fn joined(&self, routes: Routes) {
        // A rank joins only once, so the value is not set yet.
        let _ = self.routes.set(routes);
    }

    /// Prints the dump to stderr whenever the signal arrives that the settings name. Does nothing if
    /// they name none.
    pub(super) fn on_signal(
        self: &Arc<Self>,
        settings: &Settings,
    ) -> Result<Option<DumpOnSignal>, Error> {
        let Some(signal) = settings.dump_signal() else { return Ok(None) };
        let dump = Arc::clone(self);
        let on_signal = DumpOnSignal::spawn(signal, move || dump.to_string(), io::stderr());
        on_signal.map(Some).map_err(|error| Error::io("waiting for a signal", error))
    }
}

impl Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}: ", self.rank, self.nranks)?;
        let Some(Routes { local, net }) = self.routes.get() else {
            return writeln!(f, "it has not joined yet");
        };
        match (net, local.as_slice()) {
            (None, []) => writeln!(f, "no links"),
            (None, _) => writeln!(f, "links are in shared memory"),
            (Some(net), []) => write!(f, "links over the network\n{}", net.text()),
            (Some(net), ranks) => {
                let moved = net.text();
                write!(
                    f,
                    "links with ranks {ranks:?} in shared memory, else over the network\n{moved}"
                )
            }
        }
    }
}
