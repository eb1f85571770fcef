//! The variables of the environment.

use invar::Settings;
use invar_core::param::NCCL_ONLY;

use crate::doctor::host::Host;
use crate::doctor::report::{Finding, Report, Severity};

pub(super) fn check(host: &Host, report: &mut Report) {
    for (file, names) in &host.nccl_files {
        report.well(format!(
            "{} sets {}, which NCCL and its plugins take; the command `invar` does not",
            file.display(),
            names.join(", ")
        ));
    }
    for (name, text) in &host.refused {
        report.find(Finding {
            severity: Severity::Bad,
            id: "setting-refused",
            what: without(name, text),
            costs: "Invar does not start".to_owned(),
            mend: format!(
                "{}   # `invar settings` shows the values that are allowed",
                host.unset(name)
            ),
            subject: name.clone(),
        });
    }
    let remarks = Settings::from_vars(&host.env).map(|mut settings| settings.take_remarks());
    let remarks = remarks.unwrap_or_default();
    if remarks.is_empty() && host.refused.is_empty() {
        report.well("no variable of Invar or of NCCL's networks is unknown or refused");
    }
    remarks.into_iter().for_each(|remark| report.find(remarked(host, remark)));
    for name in NCCL_ONLY.iter().filter(|name| host.var(name).is_some()) {
        report.find(Finding {
            severity: Severity::Note,
            id: "setting-nccl-only",
            subject: (*name).to_owned(),
            what: "NCCL's own networks read this variable, and Invar does not".to_owned(),
            costs: "the variable has no effect on Invar".to_owned(),
            mend: host.unset(name),
        });
    }
}

/// A remark begins with the variable's name: `NAME is set, …`, or `NAME=VALUE: …`.
fn remarked(host: &Host, remark: String) -> Finding {
    let name: String = remark.chars().take_while(|c| !matches!(c, ' ' | '=')).collect();
    let is_wire = name == "INVAR_WIRE";
    let id = if is_wire { "wire-without-proof" } else { "setting-unknown" };
    let costs = if is_wire {
        "strangers can take part"
    } else {
        "the variable has no effect, and what it was meant to do does not happen"
    };
    Finding {
        severity: Severity::Warn,
        id,
        what: without(&name, &remark),
        costs: costs.to_owned(),
        mend: format!("{}   # `invar settings` shows all variables", host.unset(&name)),
        subject: name,
    }
}

/// A text that begins with a name, without that name.
fn without(name: &str, text: &str) -> String {
    let rest = text.strip_prefix(name).unwrap_or(text);
    let rest = rest.strip_prefix(" is ").or_else(|| rest.strip_prefix('=')).unwrap_or(rest);
    rest.to_owned()
}
