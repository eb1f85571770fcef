//! Tests NICs that a program brings to its process.

use std::net::Ipv4Addr;
use std::time::Duration;

use invar::nic::Nic;
use invar::{
    Choice, Device, DeviceKind, ErrorKind, Listener, MemoryRegion, SendComm, Settings, Survey,
    TransportChoice,
};
use invar_linux::soft::{SoftConfig, SoftNic};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Provides a NIC that calls itself `own`.
fn provide(name: &str, own: &'static str) {
    invar::provide(name, move || {
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let nic = SoftNic::open(&SoftConfig::new(own, address))?;
        let pd = nic.alloc_pd()?;
        Ok(Device::on(nic, pd, address.ip())?)
    });
}

fn chosen(transport: TransportChoice) -> Result<Vec<String>, invar::Error> {
    let settings = Settings::default().use_transport(transport);
    let Choice { devices, .. } = Choice::make(&settings)?;
    Ok(devices.into_iter().map(|info| info.name).collect())
}

#[test]
fn a_provided_nic_is_a_device_as_all_others_and_goes_first() {
    let settings = Settings::default();
    let Survey { devices: before, left_out, .. } = Device::survey(&settings).unwrap();
    assert!(chosen(TransportChoice::Custom).is_err());

    provide("mine0", "mine0");
    provide("mine0", "mine0");
    provide("odd0", "even0");
    invar::provide("broken0", || Err("there is no card".into()));

    let survey = Device::survey(&settings).unwrap();
    let (mine, others) = survey.devices.split_first().unwrap();
    assert_eq!((mine.name.as_str(), mine.kind, mine.up), ("mine0", DeviceKind::Custom, true));
    assert_eq!(others.len(), before.len());
    let lines = survey.left_out.iter().filter(|line| !left_out.contains(line));
    let lines: Vec<_> = lines.map(String::as_str).collect();
    let odd = "opening odd0: the NIC calls itself even0";
    assert_eq!(lines, [odd, "opening broken0: there is no card"]);

    for transport in [TransportChoice::Auto, TransportChoice::Custom] {
        assert_eq!(chosen(transport).unwrap(), ["mine0"]);
    }
    assert!(!chosen(TransportChoice::Soft).unwrap().contains(&"mine0".to_owned()));

    let device = Device::open("mine0").unwrap();
    let listener = Listener::bind(&device, &settings).unwrap();
    let sending = SendComm::connect(&device, &listener.handle(), &settings).unwrap();
    let (mut recv, mut send) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| sending.wait().unwrap());
        (listener.accept_within(TIMEOUT).unwrap(), sender.join().unwrap())
    });
    let [from, to] = [(); 2].map(|()| MemoryRegion::new(&device, 9).unwrap());
    from.write_at(0, b"a message").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send.send(&from, 0..9, 1, TIMEOUT).unwrap());
        assert_eq!(recv.recv(&to, 0..9, 1, TIMEOUT).unwrap(), 9);
    });
    let mut bytes = [0; 9];
    to.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"a message");

    let error = Device::open_for(&renamed(mine, "broken0"), &settings).unwrap_err();
    assert_eq!((error.kind(), error.device()), (ErrorKind::Local, Some("broken0")));
}

fn renamed(info: &invar::DeviceInfo, name: &str) -> invar::DeviceInfo {
    let mut info = info.clone();
    info.name = name.to_owned();
    info
}
