//! Settings, connections and ranks of the library `invar`, in one process.

use std::thread;

use invar::{
    Communicator, Device, Hub, Listener, MemoryRegion, PortRange, RecvComm, SendComm, Settings,
};

use crate::wait::{LIMIT, until};

/// The settings that these variables make, without the environment of this process.
///
/// # Panics
/// Panics if a value is refused.
pub fn settings(variables: &[(&str, &str)]) -> Settings {
    let value = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| *value);
    Settings::from_lookup(|name| value(name).map(str::to_owned)).expect("valid settings")
}

/// Opens the first device that these settings take.
///
/// # Panics
/// Panics if there is no such device.
pub fn first_device(settings: &Settings) -> Device {
    let devices = Device::survey(settings).expect("a survey").devices;
    let info = devices.iter().find(|info| settings.takes(info.kind)).expect("a device");
    Device::open_for(info, settings).expect("a device that opens")
}

/// Connects `device` with a listener of this process.
///
/// # Panics
/// Panics if an end fails, or after [`LIMIT`].
pub fn connect(device: &Device, listener: &Listener, settings: &Settings) -> (SendComm, RecvComm) {
    let connecting = SendComm::connect(device, &listener.handle(), settings);
    let mut connecting = connecting.expect("a valid handle");
    let (mut accepting, mut send, mut recv) = (None, None, None);
    until("a connection", || {
        send = send.take().or_else(|| connecting.poll().expect("the sender connects"));
        accepting = accepting.take().or_else(|| listener.accept().expect("a listener"));
        let accepted =
            accepting.as_mut().and_then(|one| one.poll().expect("the receiver connects"));
        recv = recv.take().or(accepted);
        send.is_some() && recv.is_some()
    });
    send.zip(recv).expect("both ends")
}

/// Runs `run` as each of two ranks, in a thread of its own.
///
/// # Panics
/// Panics if a rank cannot join or panics.
pub fn two_ranks<R: Send>(settings: &Settings, run: impl Fn(Communicator) -> R + Sync) -> [R; 2] {
    let at = ([127, 0, 0, 1], 0).into();
    let hub = Hub::listen(at, PortRange::ANY, 2, None, LIMIT).expect("a rendezvous");
    let (id, run) = (&hub.id(), &run);
    thread::scope(|scope| {
        let join = move |rank| Communicator::join(id, rank, 2, settings).expect("a rank");
        let ranks = [0, 1].map(|rank| scope.spawn(move || run(join(rank))));
        ranks.map(|rank| rank.join().expect("a rank"))
    })
}

/// The first `len` bytes of a region.
///
/// # Panics
/// Panics if the region is shorter.
pub fn content(region: &MemoryRegion, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read_at(0, &mut bytes).expect("a region of so many bytes");
    bytes
}
