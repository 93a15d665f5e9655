//! etcd.

mod doctor;

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::{Fault, Inspection, RedlockBuilder};
use quorate_testbed::{Etcd as Server, TestServer};

use super::backend::{Backend, failed, prepared};
use super::names::{self, Names};
use crate::exit::Failure;
use crate::finding::{Add, FaultAdvice, Rules};

#[derive(Debug)]
pub(super) struct Etcd;

impl Backend for Etcd {
    fn names(&self) -> &'static Names {
        &names::ETCD
    }

    fn add(&self, builder: RedlockBuilder, url: &str) -> Result<RedlockBuilder, String> {
        let node = quorate_etcd::node(url).map_err(|error| error.to_string())?;
        Ok(builder.node(node))
    }

    fn prepare<'a>(&self, url: &'a str) -> Option<BoxFuture<'a, Result<String, Failure>>> {
        Some(prepare(url).boxed())
    }

    fn script(&self, url: &str) -> Option<Result<String, Failure>> {
        Some(quorate_etcd::script(url).map_err(|why| Failure::usage(why.to_string())))
    }

    fn missing(&self) -> Option<String> {
        Server::missing()
    }

    fn program(&self) -> String {
        "etcd".to_owned()
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
    let report = quorate_etcd::prepare(url).await.map_err(failed)?;
    let mut text = format!("{}: {}\n", report.name, prepared(report.made));
    text.push_str("  if authentication is on, run this for the account that takes locks:\n");
    for grant in &report.grants {
        text.push_str(&format!("    {grant}\n"));
    }
    Ok(text)
}
