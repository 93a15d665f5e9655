//! PostgreSQL.

mod doctor;

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::node::store::StoreNode;
use quorate::{Fault, Inspection, RedlockBuilder};
use quorate_testbed::{PostgresOptions, TestServer};

use super::backend::{Backend, failed};
use super::database::preparation_report;
use super::names::{self, Names};
use crate::exit::Failure;
use crate::finding::{Add, FaultAdvice, Rules};

#[derive(Debug)]
pub(super) struct Postgres;

impl Backend for Postgres {
    fn names(&self) -> &'static Names {
        &names::POSTGRES
    }

    fn add(&self, builder: RedlockBuilder, url: &str) -> Result<RedlockBuilder, String> {
        let store = quorate_postgres::Postgres::open(url).map_err(|error| error.to_string())?;
        Ok(builder.node(StoreNode::new(store)))
    }

    fn prepare<'a>(&self, url: &'a str) -> Option<BoxFuture<'a, Result<String, Failure>>> {
        Some(prepare(url).boxed())
    }

    fn script(&self, url: &str) -> Option<Result<String, Failure>> {
        Some(quorate_postgres::script(url).map_err(|why| Failure::usage(why.to_string())))
    }

    fn missing(&self) -> Option<String> {
        quorate_testbed::Postgres::missing()
    }

    fn program(&self) -> String {
        "postgres".to_owned()
    }

    fn start(&self) -> Result<Box<dyn TestServer>, String> {
        // Clients refuse a server with `fsync = off`.
        let options = PostgresOptions::new().tcp().set("fsync", "on");
        let server = quorate_testbed::Postgres::start_with(options);
        Ok(Box::new(server.map_err(|error| error.to_string())?))
    }

    fn restarts(&self) -> &'static str {
        "restarts: its votes do not count until every lock from before the crash has expired"
    }

    fn judge(&self, master: &Inspection, rules: Rules, add: &mut dyn Add) {
        doctor::judge(master, rules, add);
    }

    fn explain<'a>(
        &self,
        master: &Inspection,
        fault: &Fault,
        why: &'a str,
    ) -> Option<FaultAdvice<'a>> {
        doctor::explain(master, fault, why)
    }
}

async fn prepare(url: &str) -> Result<String, Failure> {
    let report = quorate_postgres::prepare(url).await.map_err(failed)?;
    let (repaired, grants) = (&report.repaired, &report.grants);
    Ok(preparation_report(
        &report.name,
        report.made,
        repaired,
        grants,
    ))
}
