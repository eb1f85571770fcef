//! Metrics for Prometheus (`INVAR_METRICS`): the numbers of all connections and ranks of a user's
//! processes.
//!
//! The numbers come from the files of the flight recorder. So one process serves the metrics of all processes
//! of its user, and the data path is not involved.

mod encode;
mod table;

use std::sync::Once;
use std::thread;

use invar_core::param::MetricsPlace;
use invar_linux::recorder::{self, Recorded};
use invar_linux::scrape::{Endpoint, show};

pub(crate) use encode::encode;

/// Where metrics are shown, as the settings have it.
#[derive(Clone, Debug)]
pub(crate) struct Shown(Endpoint);

impl From<MetricsPlace<'_>> for Shown {
    fn from(place: MetricsPlace<'_>) -> Self {
        Shown(match place {
            MetricsPlace::Tcp(addr) => Endpoint::Tcp(addr),
            MetricsPlace::Unix(path) => Endpoint::Unix(path.into()),
            MetricsPlace::File(path) => Endpoint::File(path.into()),
        })
    }
}

/// Shows metrics from now on. Only the first call of a process has an effect.
pub(crate) fn start(Shown(place): &Shown) {
    static STARTED: Once = Once::new();
    let place = place.clone();
    STARTED.call_once(|| {
        let show = move || show(&place, || encode(living()));
        let started = thread::Builder::new().name("invar-metrics".to_owned()).spawn(show);
        if let Err(error) = started {
            log::warn!("no metrics: no thread for them: {error}");
        }
    });
}

/// Reads the recorders of all living processes of this user.
fn living() -> Vec<Recorded> {
    let all = recorder::own_files().into_iter().filter_map(|path| recorder::read(&path).ok());
    all.filter(|recorded| recorded.is_alive).collect()
}
