//! Reads the variables of each launcher.

use std::fmt::Display;

use super::{Launch, Launcher, SECRET};
use crate::Error;
use crate::error::Kind;
use crate::launcher::hostlist;

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MeetingPoint {
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
    let found = if has("RANK") && has("WORLD_SIZE") && has("MASTER_ADDR") {
        torchrun(lookup)
    } else if has("OMPI_COMM_WORLD_RANK") {
        open_mpi(lookup)
    } else if has("PMI_RANK") && has("PMI_SIZE") && has("PMI_FD") {
        pmi(lookup)
    } else if has("SLURM_PROCID") && has("SLURM_STEP_NUM_TASKS") {
        slurm(lookup)
    } else if has("JOB_COMPLETION_INDEX") {
        kubernetes(lookup)
    } else if has("PMI_RANK") && lookup("PMI_SIZE").is_some_and(|size| size != "1") {
        // A launcher with a PMI of its own started several processes. Each alone would measure nothing.
        let text = "PMI_RANK and PMI_SIZE are set, but not PMI_FD, the socket to a launcher with PMI-1: \
                    set RANK, WORLD_SIZE, MASTER_ADDR (rank 0's host) and MASTER_PORT, or unset PMI_RANK";
        return Err(Kind::Usage(text.to_owned()).into());
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
    let address = text(lookup, "MASTER_ADDR")?;
    // torchrun itself may listen at that port, so it only tells jobs apart. The count of restarts does not: each agent
    // has its own.
    let parts = ["TORCHELASTIC_RUN_ID", "MASTER_PORT"];
    let job = parts.map(|name| lookup(name).unwrap_or_default()).join(" ");
    let place = MeetingPoint::Host { hosts: vec![address], job, is_secret: false };
    launch(lookup, Launcher::Torchrun, ["RANK", "WORLD_SIZE"], place)
}

fn open_mpi(lookup: Lookup<'_>) -> Result<Launch, Error> {
    // A key that the mpirun of Open MPI 4 draws for each job.
    let key = lookup("OMPI_MCA_orte_precondition_transports");
    let is_secret = key.is_some();
    let numbers = ["OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"];
    let [id, namespace] = numbers.map(|name| lookup(name).unwrap_or_default());
    let job = format!("{id} {namespace} {}", key.unwrap_or_default());
    let place = MeetingPoint::Host { hosts: open_mpi_hosts(lookup)?, job, is_secret };
    launch(lookup, Launcher::OpenMpi, ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], place)
}

/// Open MPI tells whether all ranks are on one host, and where `mpirun` is. Rank 0 is there unless the user
/// says another host.
fn open_mpi_hosts(lookup: Lookup<'_>) -> Result<Vec<String>, Error> {
    let nranks = lookup("OMPI_COMM_WORLD_SIZE");
    if nranks.is_some() && nranks == lookup("OMPI_COMM_WORLD_LOCAL_SIZE") {
        return Ok(vec!["localhost".to_owned()]);
    }
    if let Some(host) = lookup("MASTER_ADDR") {
        return Ok(vec![host]);
    }
    // Open MPI 4: a jobid and then addresses, as in `7.0;tcp://10.0.0.1,10.1.0.1:55749;tcp6://[fd00::2]:37787`.
    let uri = lookup("OMPI_MCA_orte_hnp_uri").unwrap_or_default();
    let mut hosts: Vec<String> = uri.split(';').skip(1).flat_map(hosts_of).collect();
    if hosts.is_empty() {
        // Open MPI 5: the program, its host and its process, as in `prterun-node-7-4711@1`.
        let namespace = lookup("PMIX_NAMESPACE").unwrap_or_default();
        let after_program = namespace.split_once('-').and_then(|(_, rest)| rest.rsplit_once('-'));
        hosts.extend(after_program.map(|(host, _)| host.to_owned()));
    }
    if hosts.is_empty() {
        let text =
            "Open MPI does not tell the host of rank 0: name it by mpirun -x MASTER_ADDR=HOST";
        return Err(Kind::Usage(text.to_owned()).into());
    }
    Ok(hosts)
}

/// The addresses in `tcp://10.0.0.1,10.1.0.1:55749`.
fn hosts_of(uri: &str) -> Vec<String> {
    let Some((_, rest)) = uri.split_once("://") else { return Vec::new() };
    let Some((hosts, _port)) = rest.rsplit_once(':') else { return Vec::new() };
    let hosts = hosts.trim_start_matches('[').trim_end_matches(']').split(',');
    hosts.filter(|host| !host.is_empty()).map(str::to_owned).collect()
}

fn pmi(lookup: Lookup<'_>) -> Result<Launch, Error> {
    let place = MeetingPoint::Pmi { descriptor: number(lookup, "PMI_FD")? };
    launch(lookup, Launcher::Pmi, ["PMI_RANK", "PMI_SIZE"], place)
}

fn slurm(lookup: Lookup<'_>) -> Result<Launch, Error> {
    const NODES: &str = "SLURM_STEP_NODELIST";
    let nodes = text(lookup, NODES)?;
    let first = hostlist::first(&nodes);
    let first = first.ok_or_else(|| Kind::Usage(format!("{NODES}={nodes} is no list of hosts")))?;
    let name = |name| lookup(name).unwrap_or_default();
    let job = format!("{} {}", name("SLURM_JOB_ID"), name("SLURM_STEP_ID"));
    let place = MeetingPoint::Host { hosts: vec![first], job, is_secret: false };
    launch(lookup, Launcher::Slurm, ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], place)
}

fn kubernetes(lookup: Lookup<'_>) -> Result<Launch, Error> {
    const INDEX: &str = "JOB_COMPLETION_INDEX";
    let index = text(lookup, INDEX)?;
    if lookup("WORLD_SIZE").is_none() {
        let text = format!(
            "{INDEX}={index}: this is a pod of an indexed job of Kubernetes, which does not tell a pod the \
             number of pods: add WORLD_SIZE, with the job's completions as its value, to env of the \
             container in the job's YAML, as in {{name: WORLD_SIZE, value: \"2\"}}; 1 lets each pod work \
             alone"
        );
        return Err(Kind::Usage(text).into());
    }
    // The pod's name is JOB-INDEX, and a headless service gives it a name in DNS.
    let own = lookup("HOSTNAME").unwrap_or_default();
    let name = own.strip_suffix(&index).filter(|name| name.ends_with('-'));
    let hosts = match (lookup("MASTER_ADDR"), name) {
        (Some(address), _) => vec![address],
        (None, Some(name)) => in_domains(&format!("{name}0"), &own),
        (None, None) => {
            let text = format!(
                "HOSTNAME={own} does not end with -{index}, the index of the pod: set MASTER_ADDR to \
                 the pod with index 0"
            );
            return Err(Kind::Usage(text).into());
        }
    };
    // On the host's network a pod has its node's name.
    let name = name.map_or_else(|| hosts.join(" "), str::to_owned);
    let job = format!("{name} {}", lookup("MASTER_PORT").unwrap_or_default());
    let place = MeetingPoint::Host { hosts, job, is_secret: false };
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
    place: MeetingPoint,
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
