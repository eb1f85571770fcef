//! How a rank stands, for people who look for a hang.

use std::fmt::{self, Display};
use std::io;
use std::sync::{Arc, OnceLock};

use invar_linux::proxy::DumpOnSignal;

use super::net::LinkDump;
use crate::{Error, Settings};

/// One rank. Displayed it is a line, and what moves over the network.
pub(super) struct Dump {
    rank: u32,
    nranks: u32,
    /// Once it has joined.
    routes: OnceLock<Routes>,
}

/// How it reaches the others.
pub(super) struct Routes {
    /// Those through shared memory.
    pub(super) local: Vec<u32>,
    /// All others.
    pub(super) net: Option<LinkDump>,
}

impl Dump {
    pub(super) fn new(rank: u32, nranks: u32) -> Arc<Self> {
        Arc::new(Dump { rank, nranks, routes: OnceLock::new() })
    }

    pub(super) fn joined(&self, routes: Routes) {
        // A rank joins once.
        let _ = self.routes.set(routes);
    }

    /// Has it written on stderr whenever the signal comes that the settings name, if they do.
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
