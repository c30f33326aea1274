// Shows the OpenAPI document that the page names. Nothing is sent anywhere but to this server.
"use strict";

const place = document.getElementById("operations-api");
window.SwaggerUIBundle({
  domNode: place,
  url: place.dataset.schema,
  deepLinking: true,
  docExpansion: "list",
  validatorUrl: null,
});
