//! ZooKeeper.

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::RedlockBuilder;
use quorate_testbed::{Error, ZooKeeper as Server};

use super::backend::{Backend, StartedServer, failed, prepared};
use super::names::{self, Names};
use crate::exit::Failure;

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
        Server::available().err()
    }

    fn program(&self) -> String {
        "zookeeper".to_owned()
    }

    fn start(&self) -> Result<Box<dyn StartedServer>, String> {
        let server = Server::start().map_err(|error| error.to_string())?;
        Ok(Box::new(server))
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

impl StartedServer for Server {
    fn port(&self) -> u16 {
        self.addr(0).port()
    }

    fn url(&self) -> String {
        Self::url(self, "/quorate")
    }

    fn kill(&self) -> Result<(), Error> {
        Self::kill(self, 0)
    }

    fn restart(&self) -> Result<(), Error> {
        Self::restart(self, 0)
    }
}
