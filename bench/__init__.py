"""Load tests over HTTP: any server with OpenAI's API can be the target. Nothing of Aerie is imported here."""
