//! MySQL and MariaDB.

mod doctor;

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::node::store::StoreNode;
use quorate::{Fault, Inspection, RedlockBuilder};
use quorate_testbed::{MariaDb, MariaDbOptions, TestServer};

use super::backend::{Backend, failed};
use super::database::preparation_report;
use super::names::{self, Names};
use crate::exit::Failure;
use crate::finding::{Add, FaultAdvice, Rules};

#[derive(Debug)]
pub(super) struct MySql;

impl Backend for MySql {
    fn names(&self) -> &'static Names {
        &names::MYSQL
    }

    fn add(&self, builder: RedlockBuilder, url: &str) -> Result<RedlockBuilder, String> {
        let store = quorate_mysql::MySql::open(url).map_err(|error| error.to_string())?;
        Ok(builder.node(StoreNode::new(store)))
    }

    fn prepare<'a>(&self, url: &'a str) -> Option<BoxFuture<'a, Result<String, Failure>>> {
        Some(prepare(url).boxed())
    }

    fn script(&self, url: &str) -> Option<Result<String, Failure>> {
        Some(quorate_mysql::script(url).map_err(|why| Failure::usage(why.to_string())))
    }

    fn missing(&self) -> Option<String> {
        MariaDb::missing()
    }

    fn program(&self) -> String {
        "mariadbd".to_owned()
    }

    fn start(&self) -> Result<Box<dyn TestServer>, String> {
        let server = MariaDb::start(MariaDbOptions::new()).map_err(|error| error.to_string())?;
        Ok(Box::new(server))
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
    let report = quorate_mysql::prepare(url).await.map_err(failed)?;
    let (repaired, grants) = (&report.repaired, &report.grants);
    Ok(preparation_report(
        &report.name,
        report.made,
        repaired,
        grants,
    ))
}
