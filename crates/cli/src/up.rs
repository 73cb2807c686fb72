//! `rackweave up`.

use std::io::Write;
use std::path::Path;

use rackweave_rack::config::TimingConfig;
use rackweave_rack::embedded::{self, Options};

use crate::Failure;
use crate::args::{Timing, Up};

pub fn up(data: &Path, a: &Up) -> Result<(), Failure> {
    let options = Options {
        data: data.into(),
        nbd: a.nbd.clone(),
        http: a.http.clone(),
        config: a.config.clone(),
        servers: a.servers,
        ssd_size: a.ssd_size,
        timing: a.timing.map(|t| match t {
            Timing::Real => TimingConfig::Real,
            Timing::None => TimingConfig::None,
        }),
    };
    let json = a.json;
    embedded::up(&options, move |facts| {
        let mut out = std::io::stdout().lock();
        // Whoever started us may have closed our output: the rack runs on.
        let _ = if json {
            let all =
                serde_json::json!({ "data": facts.data, "nbd": facts.nbd, "http": facts.http, "driver": facts.driver });
            writeln!(out, "{all}")
        } else {
            print(&mut out, facts)
        };
        let _ = out.flush();
    })?;
    Ok(())
}

fn print(out: &mut impl Write, facts: &embedded::status::Facts) -> std::io::Result<()> {
    for uri in &facts.nbd {
        let example = match uri.split_once("///?") {
            Some((scheme, query)) => format!("{scheme}///VOLUME?{query}"),
            None => format!("{uri}/VOLUME"),
        };
        writeln!(out, "NBD      {example}")?;
    }
    if let Some(http) = &facts.http {
        writeln!(out, "metrics  {http}")?;
    }
    writeln!(out, "data     {}", facts.data)?;
    writeln!(out, "driver   {}; timing {}", facts.driver, facts.timing)?;
    writeln!(out, "ready (rackweave volume create NAME --size SIZE makes a volume; Ctrl-C stops)")
}
