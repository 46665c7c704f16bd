"""The dialect of /v1/responses: a request becomes a chat, and the regions of its answer become items."""
