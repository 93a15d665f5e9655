//! Tests of the page: over HTTP, and in a real browser.

mod browser;
mod http;
mod redis;
mod script;
mod served;
