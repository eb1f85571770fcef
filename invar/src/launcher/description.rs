//! Reads the variables of each launcher.

use std::fmt::Display;

use super::{Launch, Launcher, SECRET};
use crate::Error;
use crate::error::Kind;
use crate::launcher::hostlist;

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The hosts of rank 0 by name or address, the best first, and a text that is the same at all ranks of
    /// this job and of no other.
    Host { hosts: Vec<String>, job: String, is_secret: bool },
    /// Rank 0 tells the others, over the socket with this descriptor.
    Pmi { descriptor: i32 },
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads the variables of the first launcher that fits.
pub(super) fn read(lookup: Lookup<'_>) -> Result<Option<Launch>, Error> {
    // An empty variable counts as unset.
    let lookup = &|name: &str| lookup(name).filter(|value| !value.is_empty());
    let has = |name| lookup(name).is_some();
    let found = if has("RANK") && has("WORLD_SIZE") && has("MASTER_ADDR") && has("MASTER_PORT") {
        torchrun(lookup)
    } else if has("OMPI_COMM_WORLD_RANK") {
        open_mpi(lookup)
    } else if has("PMI_RANK") && has("PMI_SIZE") && has("PMI_FD") {
        pmi(lookup)
    } else if has("SLURM_PROCID") && has("SLURM_STEP_NUM_TASKS") {
        slurm(lookup)
    } else if has("JOB_COMPLETION_INDEX") && has("WORLD_SIZE") {
        kubernetes(lookup)
    } else {
        return Ok(None);
    };
    let launch = found?;
    let Launch { launcher, rank, nranks, .. } = launch;
    if rank >= nranks {
        let text = format!("{launcher} says that this is rank {rank} of {nranks} ranks");
        return Err(Kind::Usage(text).into());
    }
    Ok(Some(launch))
}

fn torchrun(lookup: Lookup<'_>) -> Result<Launch, Error> {
    let (address, port) = (text(lookup, "MASTER_ADDR")?, text(lookup, "MASTER_PORT")?);
    // torchrun itself may listen at that port.
    let name = |name| lookup(name).unwrap_or_default();
    let job =
        format!("{} {} {port}", name("TORCHELASTIC_RUN_ID"), name("TORCHELASTIC_RESTART_COUNT"));
    let place = Place::Host { hosts: vec![address], job, is_secret: false };
    launch(lookup, Launcher::Torchrun, ["RANK", "WORLD_SIZE"], place)
}

fn open_mpi(lookup: Lookup<'_>) -> Result<Launch, Error> {
    // A jobid and then addresses, as in `7.0;tcp://10.0.0.1,10.1.0.1:55749;tcp6://[fd00::2]:37787`.
    const URI: &str = "OMPI_MCA_orte_hnp_uri";
    let mpirun = text(lookup, URI)?;
    let hosts: Vec<String> = mpirun.split(';').skip(1).flat_map(hosts_of).collect();
    if hosts.is_empty() {
        return Err(Kind::Usage(format!("{URI}={mpirun} has no address of mpirun")).into());
    }
    // A key that mpirun draws for each job. A later version may lack it.
    let key = lookup("OMPI_MCA_orte_precondition_transports");
    let is_secret = key.is_some();
    let number = lookup("OMPI_MCA_ess_base_jobid").unwrap_or_default();
    let job = format!("{number} {}", key.unwrap_or_default());
    let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
    launch(lookup, Launcher::OpenMpi, names, Place::Host { hosts, job, is_secret })
}

/// The addresses in `tcp://10.0.0.1,10.1.0.1:55749`.
fn hosts_of(uri: &str) -> Vec<String> {
    let Some((_, rest)) = uri.split_once("://") else { return Vec::new() };
    let Some((hosts, _port)) = rest.rsplit_once(':') else { return Vec::new() };
    let hosts = hosts.trim_start_matches('[').trim_end_matches(']').split(',');
    hosts.filter(|host| !host.is_empty()).map(str::to_owned).collect()
}

fn pmi(lookup: Lookup<'_>) -> Result<Launch, Error> {
    let place = Place::Pmi { descriptor: number(lookup, "PMI_FD")? };
    launch(lookup, Launcher::Pmi, ["PMI_RANK", "PMI_SIZE"], place)
}

fn slurm(lookup: Lookup<'_>) -> Result<Launch, Error> {
    const NODES: &str = "SLURM_STEP_NODELIST";
    let nodes = text(lookup, NODES)?;
    let first = hostlist::first(&nodes);
    let first = first.ok_or_else(|| Kind::Usage(format!("{NODES}={nodes} is no list of hosts")))?;
    let name = |name| lookup(name).unwrap_or_default();
    let job = format!("{} {}", name("SLURM_JOB_ID"), name("SLURM_STEP_ID"));
    let place = Place::Host { hosts: vec![first], job, is_secret: false };
    launch(lookup, Launcher::Slurm, ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], place)
}

fn kubernetes(lookup: Lookup<'_>) -> Result<Launch, Error> {
    const INDEX: &str = "JOB_COMPLETION_INDEX";
    let index = text(lookup, INDEX)?;
    // The pod's name is JOB-INDEX, and a headless service gives it a name in DNS.
    let own = lookup("HOSTNAME").unwrap_or_default();
    let hosts = match lookup("MASTER_ADDR") {
        Some(address) => vec![address],
        None => match own.strip_suffix(&index).filter(|name| name.ends_with('-')) {
            Some(name) => in_domains(&format!("{name}0"), &own),
            None => {
                let text = format!(
                    "HOSTNAME={own} does not end with -{index}, the index of the pod: set MASTER_ADDR \
                     to the pod with index 0"
                );
                return Err(Kind::Usage(text).into());
            }
        },
    };
    let job =
        format!("{} {}", own.trim_end_matches(&index), lookup("MASTER_PORT").unwrap_or_default());
    let place = Place::Host { hosts, job, is_secret: false };
    launch(lookup, Launcher::Kubernetes, [INDEX, "WORLD_SIZE"], place)
}

/// The name of a pod beside this one, with this pod's domain. Kubernetes writes the full name of a pod into
/// its `/etc/hosts`.
fn in_domains(name: &str, own: &str) -> Vec<String> {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let domain = domain_of(own, &hosts).map(|domain| format!("{name}.{domain}"));
    domain.into_iter().chain([name.to_owned()]).collect()
}

/// The domain of a host in the text of an `/etc/hosts`.
fn domain_of<'a>(host: &str, hosts: &'a str) -> Option<&'a str> {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut names = lines.flat_map(|line| line.split_whitespace().skip(1));
    names.find_map(|name| name.strip_prefix(host)?.strip_prefix('.'))
}

fn launch(
    lookup: Lookup<'_>,
    launcher: Launcher,
    [rank, nranks]: [&str; 2],
    place: Place,
) -> Result<Launch, Error> {
    Ok(Launch {
        launcher,
        rank: number(lookup, rank)?,
        nranks: number(lookup, nranks)?,
        place,
        word: lookup(SECRET),
    })
}

fn text(lookup: Lookup<'_>, name: &str) -> Result<String, Error> {
    lookup(name).ok_or_else(|| Kind::Usage(format!("the launcher did not set {name}")).into())
}

fn number<T: std::str::FromStr<Err: Display>>(lookup: Lookup<'_>, name: &str) -> Result<T, Error> {
    let text = text(lookup, name)?;
    let refused = |error| Kind::Usage(format!("{name}={text}, which a launcher sets: {error}"));
    Ok(text.parse().map_err(refused)?)
}

#[cfg(test)]
mod tests;
