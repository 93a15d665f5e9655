//! ZooKeeper.

mod doctor;

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::{Fault, Inspection, RedlockBuilder};
use quorate_testbed::{TestServer, ZooKeeper as Server};

use super::backend::{Backend, failed, prepared};
use super::names::{self, Names};
use crate::exit::Failure;
use crate::finding::{Add, FaultAdvice, Rules};

#[derive(Debug)]
pub(super) struct ZooKeeper;

impl Backend for ZooKeeper {
    fn names(&self) -> &'static Names {
        &names::ZOOKEEPER
    }

    fn add(&self, builder: RedlockBuilder, url: &str) -> Result<RedlockBuilder, String> {
        let node = quorate_zookeeper::node(url).map_err(|error| error.to_string())?;
        Ok(builder.node(node))
    }

    fn prepare<'a>(&self, url: &'a str) -> Option<BoxFuture<'a, Result<String, Failure>>> {
        Some(prepare(url).boxed())
    }

    fn script(&self, url: &str) -> Option<Result<String, Failure>> {
        Some(quorate_zookeeper::script(url).map_err(|why| Failure::usage(why.to_string())))
    }

    fn missing(&self) -> Option<String> {
        Server::missing()
    }

    fn program(&self) -> String {
        "zookeeper".to_owned()
    }

    fn start(&self) -> Result<Box<dyn TestServer>, String> {
        let server = Server::start().map_err(|error| error.to_string())?;
        Ok(Box::new(server))
    }

    fn judge(&self, master: &Inspection, _: Rules, add: &mut dyn Add) {
        doctor::judge(master, add);
    }

    fn explain<'a>(&self, _: &Inspection, fault: &Fault, why: &'a str) -> Option<FaultAdvice<'a>> {
        doctor::explain(fault, why)
    }

    fn survives_alone(&self, master: &Inspection) -> bool {
        doctor::survives_alone(master)
    }
}

async fn prepare(url: &str) -> Result<String, Failure> {
    let report = quorate_zookeeper::prepare(url).await.map_err(failed)?;
    let mut text = format!("{}: {}\n", report.path, prepared(report.made));
    if report.changed > 0 {
        text.push_str(&format!(
            "  {} znodes below the path got the ACL of the path\n",
            report.changed
        ));
    }
    if report.refused > 0 {
        text.push_str(&format!(
            "  {} znodes below the path kept their old ACL, because this account has no right to change it: run this \
             command again as the account that created these znodes\n",
            report.refused
        ));
    }
    Ok(text)
}
